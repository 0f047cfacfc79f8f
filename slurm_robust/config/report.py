"""The site's choices for its reports: a section of `config`."""

from __future__ import annotations

import re

import msgspec


class ReportConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of reports about the cluster's past."""

    job_types: dict[str, str] = {}
    """Type of job → regular expression, searched in the job's name in lower case; the first that matches counts."""

    def __post_init__(self) -> None:
        """Refuse a text that is not a regular expression, and name its type of job."""
        for name, text in self.job_types.items():
            try:
                re.compile(text)
            except (re.error, OverflowError, RecursionError) as error:  # noqa: PERF203 (the error names the one)
                raise ValueError(f"job_types.{name}: {text!r} is not a regular expression: {error}") from None
