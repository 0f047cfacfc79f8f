"""Writes prolog, epilog and health check from one template, `node_script.sh.in`.

`python scripts/generate_node_scripts.py`. Each script is complete in itself, so that an administrator can copy it
anywhere: a script that root runs must not load code from wherever its copy happens to be.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = ROOT / "scripts/node_script.sh.in"

OF_A_JOB = {
    "@JOB@": "job=${SLURM_JOB_ID:-none}\ncase $job in\n    *[!0-9]*) job=none ;;\nesac\n",
    "@OF_JOB@": "job $job: ",
    "@JOB_ENVIRONMENT@": 'SLURM_JOB_ID="$job" ${SLURM_JOB_GPUS:+"SLURM_JOB_GPUS=$SLURM_JOB_GPUS"} ',
    "@REFUSE@": "    20) exit 1 ;; # unfit and drained: the check has logged why\n",
    "@TIMEOUT_S@": "20",
}
SCRIPTS: dict[str, dict[str, str]] = {
    "prolog/srobust-prolog": {
        **OF_A_JOB,
        "@STAGE@": "prolog",
        "@ABOUT@": """\
# Prolog=: is this node fit for the job that starts? Exit 1 keeps the job away, and only a check that ran, found
# the node unfit and may drain it (a drain permit, or `nodecheck.without_daemon`) leads to it. After anything else the
# job starts.""",
    },
    "epilog/srobust-epilog": {
        **OF_A_JOB,
        "@STAGE@": "epilog",
        "@ABOUT@": """\
# Epilog=: what has the job left behind on this node? Exit 1 drains the node, and only a check that ran, found it
# unfit and may drain it (a drain permit, or `nodecheck.without_daemon`) leads to it. After anything else the node
# stays in service.""",
    },
    "prolog/srobust-healthcheck": {
        **dict.fromkeys(OF_A_JOB, ""),
        "@STAGE@": "periodic",
        "@TIMEOUT_S@": "40",
        "@ABOUT@": """\
# HealthCheckProgram=: is this node still fit? slurmd ignores the exit code: the check itself drains an unfit node,
# if it may (a drain permit, or `nodecheck.without_daemon`), or only reports it. Slurm kills it after 60 s.""",
    },
}


def rendered(script: str) -> str:
    """The text of this script."""
    text = TEMPLATE.read_text(encoding="utf-8")
    for placeholder, value in SCRIPTS[script].items():
        text = text.replace(placeholder, value)
    return text


if __name__ == "__main__":
    for name in SCRIPTS:
        path = ROOT / name
        path.write_text(rendered(name), encoding="utf-8")
        path.chmod(0o755)
