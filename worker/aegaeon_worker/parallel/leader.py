"""The engine of several ranks, as rank 0 runs it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from aegaeon.errors import AegaeonError, EngineError, ErrorReason, UnavailableError
from aegaeon_worker.device.interface import Device
from aegaeon_worker.engine.commands import Attach, Command
from aegaeon_worker.engine.engine import Engine
from aegaeon_worker.engine.events import Event, GroupLost, MemoryUsage
from aegaeon_worker.engine.loading import PreparedModel
from aegaeon_worker.engine.model_table import MakeSteps, Prepared
from aegaeon_worker.engine.status import EngineStatus
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.parallel.communicator import Communicator
from aegaeon_worker.parallel.errors import GroupBroken
from aegaeon_worker.parallel.followers import Followers
from aegaeon_worker.parallel.frames import Kind, object_frame
from aegaeon_worker.parallel.last_resort import within
from aegaeon_worker.parallel.meeting import Assembled
from aegaeon_worker.parallel.mirrored_device import MirroredDevice
from aegaeon_worker.parallel.mirrored_model import MirroredModel
from aegaeon_worker.parallel.mirrored_steps import MirroredSteps
from aegaeon_worker.parallel.news import Lost, News, PreparedHere, PreparedThere

logger = logging.getLogger(__name__)


class EngineMaker(Protocol):
    """Makes rank 0's part of an engine for one group."""

    def __call__(
        self, device: Device, post: Callable[[Prepared], None], *, make_steps: MakeSteps
    ) -> Engine:
        """On ``device``; ``post`` hears of packed models, on any thread."""


class _Group:
    """The ranks while they are together, and what has been loaded on them."""

    def __init__(self, generation: int, engine: Engine, followers: Followers) -> None:
        self.generation = generation
        self.engine = engine
        self.followers = followers
        self.models = 0
        #: Packed here; the ranks that have not opened it yet.
        self.preparing: dict[str, tuple[Prepared, set[int]]] = {}


class LeadingEngine:
    """An engine that exists while all ranks are there.

    It begins and ends with the group, empty each time: when a rank is lost, the scheduler is told,
    which has the sequences run elsewhere, or here once the ranks have found together again, and
    models are loaded again, from files that are packed already.
    """

    def __init__(
        self,
        make_engine: EngineMaker,
        device: Device,
        slabs: HostSlabs,
        communicator: Communicator,
        meeting: Path,
        *,
        post: Callable[[News], None],
        usage: Callable[[], MemoryUsage],
        timeout_s: float,
    ) -> None:
        """``post`` brings news to ``handle`` on the engine's thread."""
        self._make_engine = make_engine
        self._device = device
        self._slabs = slabs
        self._communicator = communicator
        self._meeting = meeting
        self._post = post
        self._timeout_s = timeout_s
        self._generation = 0
        self._group: _Group | None = None
        self._publish: Callable[[Event], None] | None = None
        self._alone = EngineStatus(usage(), (), "")

    @property
    def status(self) -> EngineStatus:
        """What the engine last said of itself."""
        group = self._group
        return self._alone if group is None else group.engine.status

    @property
    def has_work(self) -> bool:
        """See ``Engine``."""
        return self._group is not None and self._group.engine.has_work

    @property
    def spare_s(self) -> float:
        """See ``Engine``."""
        return 0.0 if self._group is None else self._group.engine.spare_s

    def handle(self, command: Command | Prepared | News) -> None:
        """Apply one command, or hear news."""
        try:
            self._handle(command)
        except GroupBroken as error:
            self._break(str(error))

    def step(self) -> None:
        """See ``Engine``."""
        assert self._group is not None
        try:
            self._group.engine.step()
        except GroupBroken as error:
            self._break(str(error))

    def close(self) -> None:
        """Give the other ranks up, and all memory back."""
        self._end_group()

    def _handle(self, command: Command | Prepared | News) -> None:
        match command:
            case Assembled():
                self._break("its ranks come together anew")
                self._form(command)
            case Lost(generation, reason):
                if self._of(generation):
                    self._break(reason)
            case PreparedHere(generation, prepared):
                self._prepared_here(self._of(generation), prepared)
            case PreparedThere(generation, rank, model, error):
                if group := self._of(generation):
                    self._prepared_there(group, rank, model, error)
            case Attach(publish):
                self._publish = publish
                if self._group is not None:
                    self._group.engine.handle(command)
            case _:
                # Without a group there is no stream that a command could belong to.
                if self._group is not None:
                    self._group.engine.handle(command)

    def _of(self, generation: int) -> _Group | None:
        """The group, if it still is the one that was meant."""
        group = self._group
        return group if group is not None and group.generation == generation else None

    # A group's life

    def _form(self, assembled: Assembled) -> None:
        self._generation += 1
        generation = self._generation
        followers = Followers(
            assembled.links,
            self._timeout_s,
            lambda reason: self._post(Lost(generation, reason)),
            lambda *told: self._post(PreparedThere(generation, *told)),
        )
        meeting = self._meeting.with_name(f"{self._meeting.name}-{generation}")
        meeting.unlink(missing_ok=True)
        try:
            self._device.pool.restrict(assembled.num_chunks)
            followers.send(
                object_frame(Kind.FORM, meeting=meeting.name, num_chunks=assembled.num_chunks)
            )
            self._communicator.connect(meeting)
            followers.wait_formed()
        except GroupBroken as error:
            logger.warning("the ranks could not form a group: %s", error)
            self._communicator.disconnect()
            followers.close()
            return
        finally:
            meeting.unlink(missing_ok=True)
        device = MirroredDevice(self._device, self._slabs, followers)
        post = partial(_post_prepared, self._post, generation)
        steps = partial(MirroredSteps, followers=followers, communicator=self._communicator)
        engine = self._make_engine(device, post, make_steps=steps)
        self._group = _Group(generation, engine, followers)
        logger.info("all %d ranks are together", self._communicator.ranks.size)
        if self._publish is not None:
            self._group.engine.handle(Attach(self._publish))

    def _break(self, reason: str) -> None:
        if self._group is None:
            return
        logger.error("the engine has lost a rank: %s", reason)
        self._end_group()
        publish, self._publish = self._publish, None
        if publish is not None:
            error = UnavailableError(
                f"the engine has lost a rank: {reason}", reason=ErrorReason.WORKER_LOST
            )
            publish(GroupLost(error))

    def _end_group(self) -> None:
        # What its parts may take each, when a rank and then the device hang.
        with within(3 * self._timeout_s, "the group does not come to its end"):
            self._take_apart()

    def _take_apart(self) -> None:
        group, self._group = self._group, None
        if not self._communicator.recorded:
            # First, so that ranks in the middle of a collective come out of it.
            self._communicator.disconnect()
        if group is not None:
            group.followers.close()
            for prepared, _ in group.preparing.values():
                _discard(prepared)
            with contextlib.suppress(GroupBroken):
                group.engine.close()
            del group
            # What the loss of a rank has left half done may be in no sequence's books.
            self._slabs.give_back_all()
        self._communicator.disconnect()

    # Models

    def _prepared_here(self, group: _Group | None, prepared: Prepared) -> None:
        if group is None:
            _discard(prepared)
        elif isinstance(prepared.outcome, AegaeonError):
            group.engine.handle(prepared)
        else:
            spec = prepared.spec
            waiting = set(self._communicator.ranks.others)
            group.preparing[spec.name] = (prepared, waiting)
            group.followers.send(
                object_frame(
                    Kind.PREPARE,
                    name=spec.name,
                    path=str(spec.path),
                    dtype=None if spec.dtype is None else str(spec.dtype).removeprefix("torch."),
                    max_model_len=spec.max_model_len,
                    trust_remote_code=spec.trust_remote_code,
                )
            )

    def _prepared_there(
        self, group: _Group, rank: int, model: str, error: EngineError | None
    ) -> None:
        if model not in group.preparing:
            return
        prepared, waiting = group.preparing[model]
        waiting.discard(rank)
        if error is not None:
            del group.preparing[model]
            group.followers.send(object_frame(Kind.DROP, model=model))
            _discard(prepared)
            group.engine.handle(replace(prepared, outcome=error))
        elif not waiting:
            del group.preparing[model]
            outcome = prepared.outcome
            assert isinstance(outcome, PreparedModel)
            group.models += 1
            served = MirroredModel(model, group.models, outcome.served, group.followers)
            group.engine.handle(replace(prepared, outcome=replace(outcome, served=served)))


def _post_prepared(post: Callable[[News], None], generation: int, prepared: Prepared) -> None:
    post(PreparedHere(generation, prepared))


def _discard(prepared: Prepared) -> None:
    """Let go of a packed model that nobody waits for."""
    if isinstance(prepared.outcome, PreparedModel):
        prepared.outcome.weights.release()
