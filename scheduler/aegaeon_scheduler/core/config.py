"""Limits and targets of the policy core."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_scheduler.core.estimation.profile_row import ProfileRow
from aegaeon_scheduler.core.policies import SchedulingPolicy
from aegaeon_scheduler.core.values import AdmissionPolicy, PlacementPolicy, RoutingPolicy

_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CoreConfig:
    """Frozen settings; the daemon's flags fill them."""

    #: Unfinished requests at most, of all models together.
    max_requests: int = 16_384
    #: Unfinished requests of one model at most.
    max_requests_per_model: int = 8_192
    #: Prompt plus permitted new tokens of all unfinished requests at most.
    max_tokens: int = 256_000_000
    #: The same for one model.
    max_tokens_per_model: int = 128_000_000
    #: Undelivered tokens of one request at which its sequence is taken out of its turn.
    reader_backlog_tokens: int = 1_024
    #: How long a sequence waits for a READY replica after a loss before it fails, in ns.
    recovery_timeout_ns: int = 30 * _SECOND
    #: Workers that may be lost in a row while they run a request, without a new token of it; at one
    #: more the request fails, as it may be the reason.
    max_losses: int = 5
    #: Plans turns and chooses engines.
    policy: SchedulingPolicy = SchedulingPolicy.DEADLINE
    #: Refuses requests at the queue limits alone, or also those whose objectives, or others', could
    #: not be kept.
    admission: AdmissionPolicy = AdmissionPolicy.LIMITS
    #: Target time to the first token, in ns; enters the deadlines of tokens.
    ttft_slo_ns: int = 10 * _SECOND
    #: Target time per output token, in ns; enters the deadlines of tokens and quotas.
    tpot_slo_ns: int = _SECOND // 10
    #: Longest quota of a turn while another model waits, in ns; the published policy has its own.
    max_quota_ns: int = _SECOND
    #: A model that waits so long for a turn goes first, whatever the deadlines of others, in ns.
    max_wait_ns: int = 30 * _SECOND
    #: Requests by which an engine with the model at hand may be ahead and still be preferred; with
    #: deadline turns, to an idle engine.
    affinity_slack: int = 8
    #: An idle decode engine takes a batch that has never run from one of its node that has so many
    #: or more, until a topology says otherwise; 0 is never, else at least 2.
    stealing_min_batch_gap: int = 0
    #: Chooses nodes for replicas until a topology says otherwise.
    placement: PlacementPolicy = PlacementPolicy.LEAST_LOADED
    #: Chooses nodes for requests until a topology says otherwise.
    routing: RoutingPolicy = RoutingPolicy.PREFIX_AWARE
    #: Blocks of KV of which it is remembered where they are, at most, over all engines.
    prefix_index_blocks: int = 262_144
    #: Measured step times to begin with, of any devices and models.
    profiles: tuple[ProfileRow, ...] = ()
    #: Pairs of a model and the name of its rows in there, if that does not begin the model's own.
    profile_names: tuple[tuple[str, str], ...] = ()
