"""How the lab draws: one style for all figures, readable at the width of a README and by colour-blind readers.

Colours are the palette of Okabe and Ito. Figures are drawn without a display (each has its own Agg canvas, nothing
global), and stored as PNG and SVG that depend on the data alone: no date, no random ids. matplotlib is imported when
the first figure is made, so that everything else works without it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    *("#000000", "#E69F00", "#56B4E9", "#009E73"),
    *("#F0E442", "#0072B2", "#D55E00", "#CC79A7"),
)
GREY = "#666666"

SIZE = (8.0, 4.2)  # inches
ONE_LINE = 62  # letters of a legend of five entries
DPI = 150  # 1,200 pixels wide: sharp at the 800 or so of a README

STYLE: dict[str, Any] = {
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 32.0,  # room for the marks above the axes
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "svg.hashsalt": "tidings",
    "svg.fonttype": "path",
}


def draw(out: Path, name: str, paint: Callable[[Axes], None]) -> list[str]:
    """Let ``paint`` fill a figure's axes; store it, with a legend below, as PNG and SVG, and say where."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):  # type: ignore[arg-type]  # its keys are literals
        figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
        axes = figure.subplots()
        paint(axes)
        handles, labels = axes.get_legend_handles_labels()
        columns = len(labels) if len(labels) <= 5 and len("".join(labels)) <= ONE_LINE else 3
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=3.4)
        paths = [out / f"{name}.png", out / f"{name}.svg"]
        for path in paths:
            figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
    return [str(path) for path in paths]


def beside(axes: Axes) -> Axes:
    """A second panel, right of the only one, for what must not share an axis; the legend below both is the first's."""
    figure = axes.get_figure(root=True)
    assert figure is not None, "axes that `draw` has made"
    grid = figure.add_gridspec(1, 2)
    axes.set_subplotspec(grid[0])
    return figure.add_subplot(grid[1])


def shade(axes: Axes, lo: float, hi: float, label: str) -> None:
    """An interval in which something was out of order."""
    axes.axvspan(lo, hi, color="#ECECEC", zorder=0, label=label)


def mark(axes: Axes, x: float, text: str) -> None:
    """A moment: a thin line, with its name above the axes."""
    axes.axvline(x, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    above: Any = axes.get_xaxis_transform()
    axes.text(x, 1.02, text, transform=above, ha="center", va="bottom", fontsize=9, color=GREY, linespacing=1.0)


def expect(axes: Axes, between: tuple[float, float], level: float, label: str | None = None) -> None:
    """The level that a claim lets us expect."""
    axes.plot(between, [level, level], color=VERMILION, linewidth=1.5, linestyle=(0, (2, 1)), zorder=5, label=label)


def note(axes: Axes, text: str, at: tuple[float, float], to: tuple[float, float], align: str = "left") -> None:
    """A remark beside a feature of the data, with a line to it."""
    line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.8, "shrinkA": 2, "shrinkB": 3}
    axes.annotate(text, xy=to, xytext=at, fontsize=9, ha=align, va="center", arrowprops=line)
