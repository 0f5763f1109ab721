"""What the paper says, to stand beside what we find. It reports one run per number."""

CHARACTERS = 10**7
"""The length of a run on aⁿbⁿ."""

TABLE = {
    ("uoro", 1, "lstm"): 0.147,
    ("uoro", 1, "gru"): 0.155,
    ("uoro", 2, "lstm"): 0.149,
    ("uoro", 2, "gru"): 0.174,
    ("uoro", 16, "lstm"): 0.154,
    ("uoro", 16, "gru"): 0.149,
    ("bptt", 1, "lstm"): 0.178,
    ("bptt", 1, "gru"): 0.231,
    ("bptt", 2, "lstm"): 0.149,
    ("bptt", 2, "gru"): 0.285,
    ("bptt", 16, "lstm"): 0.144,
    ("bptt", 16, "gru"): 0.207,
}
"""Mean loss on the last 10⁵ of 10⁷ characters of aⁿbⁿ(1, 32), in bits per character: (method, memory, cell)."""

CLAIMS = {
    "influence": "UORO solves the problem while T-truncated BPTT fails to converge for any learning rate, even for "
    "truncations T largely above n. For n = 23 units, with 13 minus signs, truncated BPTT requires a truncation "
    "T ≥ 200 to converge.",
    "brackets": "UORO beats 4-truncated BPTT in the long run, and succeeds in reaching near optimal behaviour both "
    "with GRUs and LSTMs. Truncated BPTT remains stuck near a memoryless optimum with LSTMs; with GRUs it keeps "
    "learning, but at a slow rate. Still, truncated BPTT displays faster early convergence.",
    "anbn": "Here, in every setup, UORO reliably converges and reaches near optimal performance. Increasing UORO's "
    "range does not significantly improve results. Meanwhile, truncated BPTT performs inconsistently. With GRUs, it "
    "either converges to a poor local optimum corresponding to no understanding of the temporal structure, or "
    "exhibits gradient reascent in the long run. With LSTMs, 16-truncated BPTT reliably reaches optimal behavior.",
}
"""The paper's own words."""


def method_name(method: str, memory: int) -> str:
    """A row of the table in words.

    >>> method_name("uoro", 1), method_name("uoro", 16), method_name("bptt", 4)
    ('UORO', 'UORO, memory 16', 'truncated BPTT, T = 4')
    """
    if method == "bptt":
        return f"truncated BPTT, T = {memory}"
    return "UORO" if memory == 1 else f"UORO, memory {memory}"
