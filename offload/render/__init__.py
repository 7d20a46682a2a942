"""Plans and models as text and JSON for people and scripts."""

from offload.render.plan_json import plan_to_json
from offload.render.plan_table import render_plan

__all__ = ["plan_to_json", "render_plan"]
