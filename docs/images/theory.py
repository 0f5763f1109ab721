"""Draws theory.png: how BPTT, RTRL and UORO send a gradient through time.   python docs/images/theory.py"""

from pathlib import Path

import matplotlib.pyplot as plt

INK, BACK, FORWARD, NOISE = "#333333", "#c1553b", "#2b6ca3", "#7a5aa6"


def write(axes, x, y, text, colour=INK, size=10.0):
    axes.text(x, y, text, ha="center", va="center", fontsize=size, color=colour)


def chain(axes, title, subtitle):
    """Five steps of a recurrent model: states in a row, each with a loss above it and the parameters below."""
    axes.set_xlim(-0.7, 4.7)
    axes.set_ylim(-1.55, 1.75)
    axes.axis("off")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.text(-0.65, 1.45, subtitle, fontsize=9, color=INK, va="center")
    for t in range(5):
        circle = {"boxstyle": "circle,pad=0.35", "fc": "white", "ec": INK}
        axes.text(t, 0, f"$s_{t}$", ha="center", va="center", fontsize=11, color=INK, bbox=circle)
        write(axes, t, 0.95, rf"$\ell_{t}$", size=11)
        write(axes, t, -0.95, r"$\theta$", size=11)
        axes.plot([t, t], [0.28, 0.75], color=INK, lw=0.8)
        axes.plot([t, t], [-0.75, -0.28], color=INK, lw=0.8)
        if t:
            axes.plot([t - 0.87, t - 0.13], [0, 0], color=INK, lw=0.8)


def arrow(axes, start, end, colour, bend=0.0, style="-", width=1.6):
    shape = f"arc3,rad={bend}"
    how = {"arrowstyle": "-|>", "color": colour, "lw": width, "linestyle": style, "connectionstyle": shape}
    axes.annotate("", xy=end, xytext=start, arrowprops=how)


def draw_bptt(axes):
    chain(axes, "BPTT: rewind", "Stores every state, then sends the error of a loss back through all of them.")
    for t in range(4, 0, -1):
        arrow(axes, (t - 0.22, -0.2), (t - 0.78, -0.2), BACK, bend=-0.25)
    for t in range(5):
        arrow(axes, (t + 0.1, -0.3), (t + 0.1, -0.78), BACK, width=1.0)
    arrow(axes, (4.1, 0.78), (4.1, 0.3), BACK)


def draw_rtrl(axes):
    carried = r"Carries $G_t=\partial s_t/\partial\theta$, a matrix of n × P numbers, forward with the state."
    chain(axes, "RTRL: carry the influence", carried)
    for t in range(4):
        arrow(axes, (t + 0.22, 0.2), (t + 0.78, 0.2), FORWARD, bend=-0.3, width=4.5)
    write(axes, 2.5, 0.56, r"$G'=J\,G+I$", FORWARD)
    gradient = r"$\partial\ell/\partial s\cdot G+\partial\ell/\partial\theta$"
    write(axes, 2, -1.4, f"gradient of every loss, at once:   {gradient}", FORWARD, 9)


def draw_uoro(axes):
    mean = r"with $E[\tilde s\otimes\tilde\theta]=G$"
    carried = rf"Carries two vectors $\tilde s$ (n numbers) and $\tilde\theta$ (P numbers), {mean}."
    chain(axes, "UORO: carry a random product with the same mean", carried)
    for t in range(4):
        arrow(axes, (t + 0.22, 0.2), (t + 0.78, 0.2), FORWARD, bend=-0.3)
        arrow(axes, (t + 0.22, -0.2), (t + 0.78, -0.2), NOISE, bend=0.3, style="--")
    write(axes, 2.5, 0.56, r"$\tilde s'=\rho_0 J\tilde s+\rho_1\nu$", FORWARD)
    write(axes, 2.5, -0.62, r"$\tilde\theta'=\tilde\theta/\rho_0+\nu^\top I/\rho_1$", NOISE)
    gradient = r"$(\partial\ell/\partial s\cdot\tilde s)\,\tilde\theta+\partial\ell/\partial\theta$"
    write(axes, 2, -1.4, f"gradient:   {gradient},   ν: random signs, new at every step", NOISE, 9)


def main():
    figure, (bptt, rtrl, uoro) = plt.subplots(3, 1, figsize=(7.2, 7.4), layout="constrained")
    draw_bptt(bptt)
    draw_rtrl(rtrl)
    draw_uoro(uoro)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    main()
