"""`norewind sample`: generate text with a trained run."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from norewind.runs.settings import SettingsError, option

MOST = 10**8


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
    if not 1 <= length <= MOST:
        raise SettingsError(f"--length must be from 1 to {MOST:,}, but it is {length}.")
    if not 1e-30 <= temperature <= 1e30 or not 0 <= seed < 2**32:
        raise SettingsError("--temperature must be from 1e-30 to 1e30, and --seed from 0 to 2³² − 1.")
    from norewind.runs.folder import saved_run
    from norewind.runs.predict import sampled

    settings, saved = saved_run(run)
    text = sampled(settings, saved, length, prompt=prompt, temperature=temperature, seed=seed)
    # Arguments that are not UTF-8 are held as surrogates.
    sys.stdout.buffer.write(prompt.encode(errors="surrogateescape") + text + b"\n")
    sys.stdout.flush()
