"""`norewind sample`: generate text with a trained run."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from norewind.runs.settings import SettingsError, option


def sample(
    run: Annotated[Path, tyro.conf.Positional],
    *,
    length: int = 500,
    prompt: Annotated[str, option("TEXT", "continue the stream")] = "",
    temperature: float = 1.0,
    seed: int = 0,
) -> None:
    """Generate text with a run that was trained on bytes, text or a task.

    Args:
        run: The run folder.
        length: The number of symbols to write.
        prompt: Text to read first.
        temperature: Divides the logits: below 1 it favours likely symbols, above 1 unlikely ones.
        seed: The seed of the random choices.
    """
    if length < 1 or not temperature > 0 or not 0 <= seed < 2**32:
        raise SettingsError("--length must be at least 1, --temperature above 0, and --seed from 0 to 2³² − 1.")
    from norewind.runs.folder import saved_run
    from norewind.runs.predict import sampled

    settings, saved = saved_run(run)
    text = sampled(settings, saved, length, prompt=prompt, temperature=temperature, seed=seed)
    # Arguments that are not UTF-8 are held as surrogates.
    sys.stdout.buffer.write(prompt.encode(errors="surrogateescape") + text + b"\n")
    sys.stdout.flush()
