"""The numeric core: gradient estimators as pure functions, and the toolkit to write your own."""

from norewind._lazy import exported

__getattr__, __all__ = exported(
    __name__,
    {
        "checks": ("ModelError",),
        "combinators": ("average", "ensemble", "parallel", "window"),
        "estimator": (
            *("Estimate", "Estimator", "Linearisation", "Loss", "Model", "Transition"),
            *("checked", "linearise", "linearise_state", "model_of"),
        ),
        "noise": ("Noise", "as_key", "gaussian", "random_signs"),
        "optimizers": ("adam", "inverse_sqrt", "scale_members"),
        "run": ("NonFiniteError", "Run"),
        "structure": ("Layer", "Structure", "declare", "structure_of"),
        "trees": ("Tree", "combine", "norm", "real_leaves", "weighted_sum", "where", "with_real_leaves", "zeros_like"),
    },
)
