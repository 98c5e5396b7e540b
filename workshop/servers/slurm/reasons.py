"""The reasons of SLURM for a waiting job that do not pass by themselves, and the way out of each.

Source: SLURM's list (slurm.schedmd.com/job_reason_codes.html), and the longer wordings of slurmctld
22.05 (job_mgr.c, node_scheduler.c). A reason that is not here passes: Resources, Priority,
BeginTime, Dependency, Reservation, JobArrayTaskLimit, …
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Obstacle:
    """A reason that does not pass by itself.

    pattern: SLURM's reason, whole. never: behind "this will never start". remedy: {job} is the
    job's number. of_request: the request itself cannot be met, so it is not left in the queue.
    """

    pattern: str
    never: str
    remedy: str
    of_request: bool = True


FIRST_LOOK = "PartitionConfig"  # until the scheduler has found which limit it is, or which nodes
OTHER_LIMITS = (
    "Ask for less, or for another account or QOS: `sacctmgr show assoc`, `sacctmgr show qos`."
)
OBSTACLES = (
    Obstacle(
        "PartitionNodeLimit",
        ": its number of nodes is outside of the partition's limits",
        "Ask for another number of nodes (--nodes), or another partition (--partition).",
    ),
    Obstacle(
        "PartitionTimeLimit",
        ": its time limit is longer than the partition's",
        "Ask for less time (--time), or another partition (--partition).",
    ),
    Obstacle(
        "MaxMemPerLimit",
        ": it asks for more memory of a node, or for a processor, than the partition allows",
        "Ask for less (--mem), or another partition (--partition).",
    ),
    Obstacle(
        FIRST_LOOK,
        " as the partition is now: it breaks a limit of it, or its nodes are down",
        "Compare it with `scontrol show partition`, or choose another (--partition).",
        of_request=False,
    ),
    Obstacle(
        "PartitionDown|PartitionInactive",
        " while the partition is down",
        "Choose another (--partition); `sinfo` shows which are up.",
    ),
    Obstacle(
        "BadConstraints",
        ": no nodes satisfy all that it asks for",
        "Ask for less, or for other nodes: `sinfo -o '%P %D %G %m %c %f'` shows what there is.",
    ),
    Obstacle(
        "InvalidAccount|AccountNotAllowed|Job's account .*",
        ": its account may not use the partition",
        "Give your account with --account (`sacctmgr show assoc user=$USER`), or another partition.",
    ),
    Obstacle(
        "InvalidQOS|QOSNotAllowed|Job's QOS .*",
        ": its QOS may not be used there",
        "Give another with --qos: `sacctmgr show qos` lists them.",
    ),
    Obstacle(
        r"(Assoc|QOS)Max\w*Per(Job|Node)(Limit)?",
        ": it asks for more than one job of this account or QOS may have",
        OTHER_LIMITS,
    ),
    Obstacle(
        r"QOSMin\w*",
        ": it asks for less than a job of this QOS must have",
        "Ask for more, or for another QOS (--qos): `sacctmgr show qos` lists the limits.",
    ),
    Obstacle(
        "AssociationTimeLimit|QOSTimeLimit|QOSUsageThreshold|AccountingPolicy",
        ": it breaks a limit of its account or QOS",
        OTHER_LIMITS,
    ),
    Obstacle(
        "DependencyNeverSatisfied",
        ": the job that it depends on did not end as --dependency wants",
        "Submit it again without that --dependency.",
    ),
    Obstacle(
        "DeadLine",
        ": it cannot end before its --deadline",
        "Submit it again with a later one, or a shorter --time.",
    ),
    Obstacle(
        "ReservationDeleted",
        ": its reservation is gone",
        "Submit it again without --reservation: `scontrol show reservation` lists those that are.",
    ),
    Obstacle(
        "JobHeldUser",
        " until its hold is released",
        "Release it: scontrol release {job}",
        of_request=False,
    ),
    Obstacle(
        "JobHeldAdmin",
        " until an administrator releases it",
        "Ask the cluster's administrators why they hold it.",
        of_request=False,
    ),
    Obstacle(
        "JobHoldMaxRequeue|JobLaunchFailure|launch failed requeued held|SystemFailure",
        " until its hold is released: SLURM holds it, because its starts have failed",
        "`scontrol show job {job}` names the node. Once more: scontrol release {job}",
        of_request=False,
    ),
    Obstacle(
        "ReqNodeNotAvail.*|Nodes required for job .*|NodeDown|FrontEndDown",
        " until its nodes are back: they are down, drained or reserved",
        "`sinfo -R` says why. Or ask for other nodes.",
        of_request=False,
    ),
    Obstacle(
        r"(Assoc|QOS)Grp\w*(?<!Run)Minutes(Limit)?",
        " until its account or QOS has time left: what it may use is used up",
        "`sshare -l` shows what is left; ask who gives it, or for another account or QOS.",
        of_request=False,
    ),
    Obstacle(
        r"(Assoc|QOS)Grp\w*|(Assoc|QOS)Max\w*|Max\w+PerAccount|Association\w*Limit|"
        "QOSJobLimit|QOSResourceLimit",
        " before other jobs of you, your account or QOS have ended, or at all if it asks for more "
        "than their limit",
        f"`squeue --me` lists yours. {OTHER_LIMITS}",
        of_request=False,
    ),
    Obstacle(
        "BurstBufferOperation",
        ": its burst buffer failed",
        "Cancel it, and submit it again without.",
        of_request=False,
    ),
)


def obstacle(reason: str) -> Obstacle | None:
    """Return what is in the way of a job that waits for this reason; None if that passes."""
    for row in OBSTACLES:
        if re.fullmatch(row.pattern, reason.strip("() ")):
            return row
    return None
