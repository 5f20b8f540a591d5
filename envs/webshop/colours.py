"""The colour names by which WebShop's reward compares the values of options.

Invariants: alphabetical, which decides which name counts where a value holds several; ``dark``, ``light`` and names of
patterns are among them, as in WebShop.
"""

from __future__ import annotations

_ALPHABETICAL = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
    caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
    dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo
    ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor
    mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand
    sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
    wheat white wine yellow
"""
_NAMES = tuple(_ALPHABETICAL.split())


def first_colour(value: str) -> str:
    """The first name that the value holds, be it inside a word; the value itself where it holds none."""
    return next((name for name in _NAMES if name in value), value)
