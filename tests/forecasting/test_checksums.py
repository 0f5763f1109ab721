"""The checksum of a compressed file is compared with its decompressed content."""

import hashlib
import json

import pytest

from norewind.forecasting.compress import MAGIC, CodeError, compress, decompress


def test_content_that_does_not_match_its_checksum_is_rejected():
    content = b"to be, or not to be: " * 5
    data = compress(content)
    header, _, code = data[len(MAGIC) :].partition(b"\n")
    other = content[:-1] + b"\n"
    forged = json.dumps(json.loads(header) | {"sha256": hashlib.sha256(other).hexdigest()}).encode()
    assert decompress(data) == content
    with pytest.raises(CodeError, match="original content"):
        decompress(MAGIC + forged + b"\n" + code)
    with pytest.raises(CodeError, match="does not end as it should"):
        decompress(data + b"\0")
