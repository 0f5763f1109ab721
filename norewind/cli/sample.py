"""`norewind sample`: let a trained run write text."""

import sys
from pathlib import Path
from typing import Annotated

import tyro


def sample(
    run: Annotated[Path, tyro.conf.Positional],
    *,
    length: int = 500,
    prompt: str = "",
    temperature: float = 1.0,
    seed: int = 0,
) -> None:
    """Write text from a run that was trained on bytes, text or a task.

    Args:
        run: the run folder.
        length: how many symbols to write.
        prompt: what to read first; by default the text goes on where the run stopped.
        temperature: below 1 keeps to what is likely, above 1 strays.
        seed: of the random choices.
    """
    from norewind.cli.endings import BAD_INPUT, friendly, leave
    from norewind.cli.running import set_precision

    if length < 1 or not temperature > 0 or not 0 <= seed < 2**32:
        leave(
            f"norewind sample: --length must be from 1, not {length}, --temperature above 0, not {temperature}, and "
            f"--seed from 0 to 2³² − 1, not {seed}.",
            BAD_INPUT,
        )
    with friendly("sample"):
        from norewind.training.predicting import sampled, saved_run

        saved = saved_run(run)
        set_precision(saved.settings)
        text = sampled(saved, length, prompt=prompt, temperature=temperature, seed=seed)
        # The system hands over bytes that are not UTF-8 as surrogates: back they go.
        sys.stdout.buffer.write(prompt.encode(errors="surrogateescape") + text + b"\n")
        sys.stdout.flush()
