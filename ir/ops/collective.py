"""The collective that a plan writes out where a value changes its placement."""

from .definition import OpDef

# Its attribute `kind` names the collective.
REDISTRIBUTE = "redistribute"

DEFINITIONS = (OpDef(REDISTRIBUTE, "collective", call="collectives", dear=True),)
