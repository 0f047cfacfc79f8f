"""Says what the columns of the tables mean, and defines the views that answer questions. Data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MEANINGS: Mapping[str, str] = {
    # Common to several tables; `table.column` comes first.
    "cluster": "Slurm's name of the cluster.",
    "job": "The job's address in Slurm: 12, or 12_3 for a task of an array.",
    "job_id": "Slurm's raw job id.",
    "user": "The job's owner; empty if unknown.",
    "name": "The job's name, as its owner chose it.",
    "partition": "Slurm's partition.",
    "nodes": "The nodes' names (JSON: SELECT value FROM jobs, json_each(jobs.nodes)).",
    "node_count": "How many nodes.",
    "gpus": "GPUs on all nodes together; 0 if unknown.",
    "node": "The node's name.",
    "lineage": "The training: all attempts that belong together across requeues have the same.",
    "restart": "How often Slurm had requeued the job before (SLURM_RESTART_COUNT).",
    "state": "Slurm's state at its end; empty while it runs.",
    "eligible_at_s": "Since when it could have started.",
    "reason": "The reason, in words.",
    "incident": "Key of the incident that it belongs to.",
    "at_s": "When.",
    "why": "The reason, in words.",
    "text": "A sentence: a source that was away, or times that do not add up.",
    "from_s": "Begin of the time that was read.",
    "to_s": "End of the time that was read.",
    "read_at_s": "When it was read; what still ran then has no end.",
    "begun_at_s": "When it began.",
    "ended_at_s": "When it ended; NULL where it has not.",
    "outcome": "How it ended, one word.",
    "kind": "Of what kind.",
    # attempts
    "start_at_s": "When Slurm started it.",
    "first_step_at_s": "When it completed its first step.",
    "first_new_step_at_s": "When it completed its first step that no earlier attempt had made.",
    "last_step_at_s": "When it completed its last step so far.",
    "seen_at_s": "When it was last seen alive.",
    "end_at_s": "When it ended; NULL while it runs.",
    "resume_step": "Step of the checkpoint that it started from; -1 for none.",
    "last_step": "The highest step that it has reached; -1 where it reported none.",
    "checkpoint_s": "Seconds in which steps stood still for a checkpoint, after the first step.",
    "slow_s": "Seconds that steps took beyond the usual pace.",
    "step_s": "Seconds that a step usually takes; 0: unknown.",
    "report_every_s": "How often the job reports its last step, in seconds; 0: at changes of its state only.",
    "run_at_s": "The same in whole seconds, as Slurm counts: with job_id, restart and lineage, it is unique.",
    "restarts_within": "Restarts within the run: when each made its first step, and its first new one (JSON).",
    "unwatched": "Stretches in which launches came and went while no daemon read: begin and end (JSON).",
    # incidents
    "key": "Unique name in the journal.",
    "id": "Its name in the job, and its folder's.",
    "attempt": "Key of the attempt in which it happened.",
    "incidents.kind": "claim, node_lost, node_fault, owner or report.",
    "mode": "act, or observe: only written down.",
    "incidents.state": "open, running (the job runs, its first new step is awaited) or closed.",
    "incidents.outcome": "running, resumed, ended, not_started, aborted, refused, observed, …; empty while open.",
    "opened_at_s": "When it was suspected.",
    "closed_at_s": "When it was closed; NULL while it is open.",
    "accepted_at_s": "When the daemon accepted the claim.",
    "incidents.first_step_at_s": "The first step after it, made before or not.",
    "incidents.first_new_step_at_s": "The first step after it that nobody had made before: nothing is lost any more.",
    "fault_at_s": "The last sign of progress, or the fault itself.",
    "suspected_at_s": "When it was suspected.",
    "captured_at_s": "When the evidence was captured.",
    "localised_at_s": "When it was known who is at fault.",
    "decided_at_s": "When the plan was made.",
    "stopped_at_s": "When the attempt had ended.",
    "tests_started_at_s": "When tests of the nodes began.",
    "tests_done_at_s": "When they ended.",
    "running_at_s": "When Slurm ran the next attempt.",
    "imports_done_at_s": "When its ranks had imported everything.",
    "process_groups_ready_at_s": "When its ranks had met.",
    "checkpoint_loaded_at_s": "When it had loaded its checkpoint.",
    "conclusion": "culprit, none, user_code or undetermined.",
    "confidence": "Of the verdict, 0 to 1.",
    "suspects": "The nodes held to be at fault (JSON).",
    "road": "The plan's way back: seat, owner_requeue, …; empty if there is none.",
    "evict": "Nodes that the next attempt leaves out (JSON).",
    "standby": "Nodes that replace them (JSON).",
    "verdict": "The verdict, in words.",
    "plan": "The plan's reason, in words.",
    "category": "What broke, by the rules of `srobust diagnose`; empty if unknown.",
    "blame": "Whose fault that is: node, shared, program, either, nobody; empty if unknown.",
    "incidents.nodes": "How many nodes the job had; 0 if unknown.",
    "folder": "The job's own report.",
    # actions
    "actions.kind": "Which of the daemon's actions.",
    "target": "The node, job or reservation.",
    "planned": "1 where it stood in the plan, 0 if it was found necessary later.",
    "calls": "How often Slurm was asked for it.",
    "called_at_s": "When Slurm was asked first; NULL where it never was.",
    "done_at_s": "When Slurm showed it done; NULL where it did not.",
    "error": "Slurm's last refusal, or why it was not needed.",
    # drains, strikes, repairs
    "reverted": "1 where it was for nothing: a check passed, or somebody resumed it in an hour, with nothing repaired.",
    "failed_test": "The test that failed; empty if the strike rests on a job's claim alone.",
    "remedy": "What was done to the node.",
    # pools and sizes
    "pool": "The standby pool.",
    "wanted": "How many nodes it is to have.",
    "pools.at_s": "From when on it was so, until the next row of the same pool.",
    "sizes.at_s": "From when on it was so, until the next row of the same class.",
    "gres": "The hardware class: generic resources of each node; empty for none.",
    "sizes.nodes": "How many nodes of this class Slurm had.",
    "sizes.gpus": "GPUs on each of these nodes.",
    # jobs
    "jobs.restart": "How many earlier runs of the job the accounting has in this time.",
    "account": "Slurm's account.",
    "submitted_at_s": "When this run was submitted: a requeue submits anew.",
    "started_at_s": "When it started; NULL where it has not, or where the accounting forgot it.",
    "jobs.state": "COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL, OUT_OF_MEMORY, PREEMPTED, REQUEUED, RUNNING, …",
    "exit_code": "code:signal.",
}


@dataclass(frozen=True)
class FactView:
    """A question, as SQL, and what its own columns mean."""

    question: str
    sql: str
    meanings: Mapping[str, str] = field(default_factory=dict)


VIEWS: Mapping[str, FactView] = {
    "trainings": FactView(
        "How far did each training get, in how many attempts?",
        """SELECT lineage, max(user) AS user, max(name) AS name, count(*) AS attempts, count(DISTINCT job_id) AS jobs,
             max(node_count) AS node_count, max(gpus) AS gpus, min(eligible_at_s) AS eligible_at_s,
             min(start_at_s) AS start_at_s,
             CASE WHEN count(end_at_s) = count(*) THEN max(end_at_s) END AS end_at_s, max(last_step) AS last_step,
             sum(checkpoint_s) AS checkpoint_s, sum(slow_s) AS slow_s
           FROM attempts GROUP BY cluster, lineage""",
        {
            "attempts": "How many attempts there were in this time.",
            "jobs": "How many jobs of Slurm it ran in.",
            "start_at_s": "Start of its first attempt in this time.",
        },
    ),
    "incidents_by_road": FactView(
        "Which way back took how long?",
        """SELECT road, outcome, count(*) AS incidents, avg(suspected_at_s - fault_at_s) AS detection_s,
             avg(decided_at_s - suspected_at_s) AS diagnosis_s, avg(first_new_step_at_s - decided_at_s) AS restart_s
           FROM incidents GROUP BY road, outcome""",
        {
            "incidents": "How many.",
            "detection_s": "From the last sign of progress to the suspicion, on average, where both are known.",
            "diagnosis_s": "From the suspicion to the plan, on average.",
            "restart_s": "From the plan until all lost steps are made again, on average.",
        },
    ),
    "incidents_by_category": FactView(
        "What broke, and how many GPUs stood still for it?",
        """SELECT category, blame, count(*) AS incidents, sum(gpus) AS gpus FROM incidents GROUP BY category, blame""",
        {"incidents": "How many.", "gpus": "GPUs of their jobs, added up."},
    ),
    "node_failures": FactView(
        "Which nodes fail again and again?",
        """SELECT node, sum(suspected) AS suspected, sum(struck) AS struck, sum(drained) AS drained,
             sum(reverted) AS reverted, sum(repaired) AS repaired, sum(node_fail) AS node_fail
           FROM (
             SELECT value AS node, 1 AS suspected, 0 AS struck, 0 AS drained, 0 AS reverted, 0 AS repaired,
               0 AS node_fail FROM incidents, json_each(incidents.suspects)
             UNION ALL SELECT node, 0, 1, 0, 0, 0, 0 FROM strikes
             UNION ALL SELECT node, 0, 0, NOT EXISTS (SELECT 1 FROM drains AS before WHERE before.node = drains.node
                 AND before.ended_at_s = drains.at_s AND before.at_s < drains.at_s), reverted, 0, 0 FROM drains
             UNION ALL SELECT node, 0, 0, 0, 0, 1, 0 FROM repairs
             UNION ALL SELECT value, 0, 0, 0, 0, 0, 1 FROM jobs, json_each(jobs.nodes)
               WHERE state = 'NODE_FAIL' AND node_count = 1
           ) GROUP BY node""",
        {
            "suspected": "Incidents whose verdict named it.",
            "struck": "Strikes.",
            "drained": "Drains by slurm_robust; one whose reason was changed counts once.",
            "reverted": "Drains for nothing, as far as anybody knows.",
            "repaired": "Repairs that were tried.",
            "node_fail": "Jobs of one node that ended here as NODE_FAIL; of several nodes Slurm does not say which.",
        },
    ),
    "jobs_by_state": FactView(
        "How did jobs end, and what did they use?",
        """SELECT state, count(*) AS jobs, sum(gpus * (ended_at_s - started_at_s)) / 3600.0 AS gpu_hours,
             sum(node_count * (ended_at_s - started_at_s)) / 3600.0 AS node_hours,
             avg(CASE WHEN started_at_s >= eligible_at_s THEN started_at_s - eligible_at_s END) AS queued_s
           FROM jobs GROUP BY state""",
        {
            "jobs": "How many runs.",
            "gpu_hours": "GPUs times hours, of runs that have a start and an end.",
            "node_hours": "Nodes times hours, of the same.",
            "queued_s": "From eligible to start, on average, of runs that did not start before they were eligible.",
        },
    ),
}
