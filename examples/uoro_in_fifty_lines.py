"""UORO in fifty lines of NumPy: a recurrent network learns aⁿbⁿ online, without storing the past.

The network reads a symbol x and predicts the next one:   h' = tanh(W [x, h, 1]),   p = softmax(V [h', 1]).
RTRL would carry the influence ∂h/∂W, one matrix per unit. UORO carries two small arrays, h̃ and W̃, whose outer
product has the same mean.
"""

import numpy as np


def step(W, V, h, h_tilde, W_tilde, x, target, signs):
    """One step of Algorithm 1. Returns the loss, its gradients, the new state and the new carry."""
    inputs = np.concatenate([np.eye(3)[x], h, [1.0]])
    new_h = np.tanh(W @ inputs)
    features = np.append(new_h, 1.0)
    p = np.exp(V @ features)
    p /= p.sum()
    loss, error = -np.log(p[target]), p - np.eye(3)[target]

    slope = 1 - new_h**2  # of the tanh, unit by unit
    back = slope * (V[:, :-1].T @ error)  # ∂ℓ/∂(W inputs)
    past = back @ W[:, 3:-1] @ h_tilde  # ∂ℓ/∂h · h̃, one number
    grad_W = past * W_tilde + np.outer(back, inputs)  # through the past, by the carry, plus through this step
    grad_V = np.outer(error, features)

    pushed = slope * (W[:, 3:-1] @ h_tilde)  # h̃ moved forward by one step: J h̃
    fresh = np.outer(signs * slope, inputs)  # the new influence, projected on random signs: νᵀI
    rho0 = np.sqrt(np.linalg.norm(W_tilde) / (np.linalg.norm(pushed) + 1e-7)) + 1e-7
    rho1 = np.sqrt(np.linalg.norm(fresh) / (np.linalg.norm(signs) + 1e-7)) + 1e-7
    h_tilde = rho0 * pushed + rho1 * signs
    W_tilde = W_tilde / rho0 + fresh / rho1
    return loss, grad_W, grad_V, new_h, h_tilde, W_tilde


def text(random):
    """An endless text of lines aⁿbⁿ, n from 1 to 4, as symbols 0 (a), 1 (b) and 2 (end of line)."""
    while True:
        n = random.integers(1, 5)
        yield from [0] * n + [1] * n + [2]


def main(samples=100_000, units=16, rate=0.003):
    random = np.random.default_rng(0)
    W, V = random.normal(0, 0.3, (units, units + 4)), np.zeros((3, units + 1))
    h, h_tilde, W_tilde = np.zeros(units), np.zeros(units), np.zeros_like(W)
    stream, bits = text(random), 0.0
    x = next(stream)
    for t in range(1, samples + 1):
        target, signs = next(stream), random.choice([-1.0, 1.0], units)
        loss, grad_W, grad_V, h, h_tilde, W_tilde = step(W, V, h, h_tilde, W_tilde, x, target, signs)
        grad_W *= 10 / max(10, np.linalg.norm(grad_W))  # UORO's noise has rare outliers
        speed = rate / (1 + 0.01 * t**0.5)
        W, V, x = W - speed * grad_W, V - speed * grad_V, target
        bits += loss / np.log(2)
        if t % 10_000 == 0:
            print(f"{t:7,d} symbols  {bits / 10_000:.3f} bits per symbol (at best 0.333)")
            bits = 0.0


if __name__ == "__main__":
    main()
