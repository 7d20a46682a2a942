"""Is this build as fast as that one, on a machine that is never quiet?"""

from tuner.paired.arm import Arm, Sizes
from tuner.paired.arms import choose_arm
from tuner.paired.others import BenchArm, SessionArm
from tuner.paired.recorded import SpeedBaseline, compare_recorded, record_baseline
from tuner.paired.result import SpeedCheck, SpeedOptions, TestResult
from tuner.paired.run import compare_builds
from tuner.paired.server import ServerArm
from tuner.paired.text import check_to_json, describe_check, describe_result
from tuner.paired.verdict import Comparison, Verdict

__all__ = [
    "Arm",
    "BenchArm",
    "Comparison",
    "ServerArm",
    "SessionArm",
    "Sizes",
    "SpeedBaseline",
    "SpeedCheck",
    "SpeedOptions",
    "TestResult",
    "Verdict",
    "check_to_json",
    "choose_arm",
    "compare_builds",
    "compare_recorded",
    "describe_check",
    "describe_result",
    "record_baseline",
]
