"""The linear models of a mixture of forecasts of numbers."""

from norewind.learners.linear import Linear
from norewind.learners.smoothing import Smoothing

# The lags of the targets are divided by their number. Other inputs have fewer.
MODELS = (
    Linear(8, 0.998),
    Linear(32, 0.9998),
    Linear(168, 0.9998),
    Linear(168, 0.998),
    Linear(168, 0.9998, spread=100.0),
    Linear(24, 0.9998, spread=100.0),
    Linear(24, 0.9998, spread=10.0, differences=True),
    Linear(24, 0.9998, spread=10.0, season=1),
    Linear(24, 0.9998, spread=10.0, season=2),
    Linear(24, 0.9998, spread=10.0, season=1, differences=True),
)
# With more outputs than this, weights take most of the time, and fewer models are as good.
MANY_OUTPUTS, MODELS_FOR_MANY_OUTPUTS = (
    200,
    (
        Linear(32, 0.9998),
        Linear(32, 0.998),
        Linear(168, 0.9998),
        Linear(32, 0.9998, differences=True),
        Linear(32, 0.9998, season=1),
    ),
)
# With a small budget, models of the past of the targets see at most this many rows of the other inputs.
FEW_OTHERS = 16

SMOOTHINGS = (
    Smoothing(0.3, 0.1, 0.2),
    Smoothing(0.1, 0.1, 0.4),
    Smoothing(0.6, 0.05, 0.1),
    Smoothing(0.3, 0.1, 0.2, multiplicative=True),
    Smoothing(0.1, 0.1, 0.4, multiplicative=True),
    Smoothing(0.6, 0.05, 0.1, multiplicative=True),
    Smoothing(0.3, theta=True),
    Smoothing(0.8, theta=True),
    Smoothing(0.3, 0.0, 0.1, theta=True),
    Smoothing(0.8, 0.0, 0.1, theta=True),
)


def linear_models(inputs: int, outputs: int, own: int, *, few: bool = False) -> list[Linear]:
    """Choose linear models: few and many lags, forgetting quickly and slowly, of values and of changes.

    The lags of the targets are divided by their number only, whatever other inputs there are.

    Args:
        inputs: the number of inputs.
        outputs: the number of outputs of all steps.
        own: how many of the inputs are the latest targets.
        few: whether to see at most `FEW_OTHERS` rows of the other inputs, which takes less time.
    """
    chosen = MODELS if outputs <= MANY_OUTPUTS else MODELS_FOR_MANY_OUTPUTS
    found = []
    for model in chosen:
        # With many other inputs, only some of the models can afford to see them.
        is_first = model.spread == 1 and not model.differences and not model.season
        others = max(int(is_first), model.lags // inputs) if inputs > own else 0
        others = min(others, FEW_OTHERS) if few and own else others
        found.append(model._replace(lags=max(1, model.lags // own) if own else 0, others=others))
    return list(dict.fromkeys(found))
