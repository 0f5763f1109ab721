"""The numeric core: gradient estimators as pure functions, and the toolkit to write your own."""

from norewind.core.checks import ModelError
from norewind.core.combinators import average, ensemble, parallel, restarting, window
from norewind.core.estimator import (
    NO_INFLUENCE,
    Estimate,
    Estimator,
    FastMeans,
    Influence,
    Linearisation,
    Loss,
    Model,
    Transition,
    linearise,
    linearise_state,
    model_of,
)
from norewind.core.noise import Noise, as_key, gaussian, random_signs
from norewind.core.optimizers import adam, inverse_sqrt, scale_members
from norewind.core.remedies import continual_backprop, l2_to_start
from norewind.core.run import NonFiniteError, Run
from norewind.core.step_sizes import idbd, intentional, obgd
from norewind.core.structure import Layer, Structure, declare, structure_of
from norewind.core.td import Choice, Outcome, td
from norewind.core.trees import Tree, combine, norm, real_leaves, weighted_sum, where, with_real_leaves, zeros_like

__all__ = [
    "NO_INFLUENCE", "Choice", "Estimate", "Estimator", "FastMeans", "Influence", "Layer", "Linearisation", "Loss",
    "Model", "ModelError", "Noise", "NonFiniteError", "Outcome", "Run", "Structure", "Transition", "Tree", "adam",
    "as_key", "average", "combine", "continual_backprop", "declare", "ensemble", "gaussian", "idbd", "intentional",
    "inverse_sqrt", "l2_to_start", "linearise", "linearise_state", "model_of", "norm", "obgd", "parallel",
    "random_signs", "real_leaves", "restarting", "scale_members", "structure_of", "td", "weighted_sum", "where",
    "window", "with_real_leaves", "zeros_like",
]  # fmt: skip
