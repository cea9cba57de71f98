"""Planted bugs: mistakes people really make, one patch of one module each, that a campaign must catch.

A mutant replaces one piece of a module's source; the piece must occur exactly once, so that a change of the source
which makes a mutant meaningless is noticed and not passed over. They are grouped by module. Together they give each
function of check/ something to find, and each is a bug for which somebody, somewhere, has been woken at night.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidings.core.errors import BadInput


@dataclass(frozen=True)
class Mutant:
    """One bug: in the source of ``module`` (below tidings), ``find`` becomes ``replace``."""

    id: str
    module: str
    find: str
    replace: str
    what: str

    def apply(self, source: str) -> str:
        """The source with the bug in it."""
        times = source.count(self.find)
        if times != 1:
            raise BadInput(
                f"mutant {self.id}: {self.find!r} occurs {times} times in {self.module}, not once; anchor it anew"
            )
        return source.replace(self.find, self.replace)


CHAIN = (
    Mutant(
        "head-commits-at-persist",
        "protocols.chain",
        "if self.is_tail and not self.token_passed:\n            return",
        "if (self.is_tail or self.is_head) and not self.token_passed:\n            return",
        "the head commits, and so acknowledges, what only its own disk holds",
    ),
    Mutant(
        "tail-commits-before-persist",
        "protocols.chain",
        "if self.is_tail and not self.token_passed:\n            return self._commit(self.durable)",
        "if self.is_tail and not self.token_passed:\n            return self._commit(self.log.last)",
        "the tail commits what is still on its way to its disk",
    ),
    Mutant(
        "forward-before-persist",
        "protocols.chain",
        "upto = min(self.durable, ",
        "upto = min(self.log.last, ",
        "a replica forwards records that it could still lose itself",
    ),
    Mutant(
        "old-disk-trusted",
        "protocols.chain",
        "self.unproven = self._neighbours() if old.epoch == 0 or self.unproven else ()",
        "self.unproven = ()",
        "a member that restarts takes its place whatever its disk has lost",
    ),
    Mutant(
        "old-epoch-accepted",
        "protocols.chain",
        "if epoch < self.membership.epoch:",
        "if epoch < self.membership.epoch and isinstance(message, Append):\n"
        "            return self._receive_records(message.records)\n"
        "        if epoch < self.membership.epoch:",
        "records of an older epoch are stored, whoever sends them",
    ),
    Mutant(
        "cut-back-forgotten",
        "protocols.chain",
        "effects[:0] = self._cut_back()",
        "pass",
        "a removed replica rejoins with records that were never committed",
    ),
    Mutant(
        "cut-back-too-far",
        "protocols.chain",
        "CutBack(self.log.last, ",
        "CutBack(self.log.last - 1, ",
        "the disk is told to void the last committed record, too",
    ),
    Mutant(
        "token-passed-too-early",
        "protocols.chain",
        "return self._receive_fetch(src, after)",
        "return [*self._receive_fetch(src, after), *self._receive_ack(src, self.log.committed)]",
        "a joining replica gets the token when it asks for records, not when it has them",
    ),
    Mutant(
        "promoted-before-level",
        "protocols.chain",
        " or self.held < self.log.committed:",
        ":",
        "a joining replica becomes the tail while it lacks some of what is committed",
    ),
    Mutant(
        "snapshot-acknowledged-early",
        "protocols.chain",
        "self.unsafe = persist.token\n        fetch",
        "fetch",
        "a joining replica acknowledges a snapshot that its disk does not hold yet",
    ),
    Mutant(
        "commit-after-token",
        "protocols.chain",
        "if self.is_tail and not self.token_passed:\n            return",
        "if self.is_tail:\n            return",
        "the old tail goes on committing by itself when it has passed its token",
    ),
    Mutant(
        "token-forgotten-at-restart",
        "protocols.chain",
        "self.token_passed = new.epoch == self.log.token_epoch",
        "self.token_passed = False",
        "a tail that restarts after it has passed its token commits by itself again",
    ),
    Mutant(
        "lost-ack-not-repeated",
        "protocols.chain",
        "return effects or self._ack()",
        "return effects",
        "a replica does not acknowledge again what its predecessor sends again",
    ),
    Mutant(
        "disk-says-committed",
        "protocols.chain",
        "self._persist(Logged(record, self.log.committed))",
        "self._persist(Logged(record, record.lsn))",
        "after a restart a replica takes all it has stored for committed",
    ),
)

LOG = (
    Mutant(
        "collection-by-uncommitted",
        "protocols.log",
        "self._extend(part)",
        "self._extend(part)\n            self.histories[part.stream].accept(part)",
        "records enter the histories when they are appended: uncommitted events collect",
    ),
    Mutant(
        "snapshot-misses-a-stream",
        "protocols.log",
        "for history in self.histories.values():",
        "for history in list(self.histories.values())[:-1]:",
        "a snapshot leaves out the last stream",
    ),
    Mutant(
        "snapshot-misses-publishers",
        "protocols.log",
        "for history in self.histories.values():",
        "for history in list(self.histories.values())[1:]:",
        "a snapshot leaves out the publishers table, so a replica that came by it repeats what is retried",
    ),
    Mutant(
        "install-keeps-numbers",
        "protocols.log",
        "            self._extend(span)\n",
        "",
        "after a snapshot a replica that becomes head gives out numbers from the beginning again",
    ),
    Mutant(
        "never-trimmed",
        "protocols.log",
        "if surplus > retain:",
        "if surplus > retain + 1_000_000:",
        "a replica keeps every record for ever",
    ),
)

CONFIGURATION = (
    Mutant(
        "newcomer-becomes-head",
        "protocols.configuration",
        "self._decide((*current.replicas, joining), None)",
        "self._decide((joining, *current.replicas), None)",
        "a replica that has only just caught up is put in front",
    ),
    Mutant(
        "silent-replica-kept",
        "protocols.configuration",
        "<= self.settings.silence",
        "<= 3600.0",
        "nobody is ever removed, so a dead replica stops its chain",
    ),
    Mutant(
        "epoch-not-raised",
        "protocols.configuration",
        "Membership(self.membership.region, self.membership.epoch + 1, replicas, joining)",
        "Membership(self.membership.region, self.membership.epoch, replicas, joining)",
        "two memberships share an epoch",
    ),
)

INTER_REGION = (
    Mutant(
        "stale-advertise-tick",
        "protocols.interregion",
        "def _advertise_tick(self, generation: int) -> list[Effect]:",
        "def _advertise_tick(self, generation: int) -> list[Effect]:\n        generation = self.generation",
        "a timer from an earlier time as tail is honoured: replicas that serve nobody advertise",
    ),
    Mutant(
        "subscribe-from-advertised",
        "protocols.interregion",
        "effects.append(Send(src, Subscribe(stream, own, owner)))",
        "effects.append(Send(src, Subscribe(stream, advertised, owner)))",
        "a subscription starts at the advertised count instead of own progress (the slip of figure 1, A1.24)",
    ),
    Mutant(
        "unsubscribe-forgotten",
        "protocols.interregion",
        "self.subscribers.pop((src, stream), None)",
        "pass",
        "a source goes on sending to who has left it",
    ),
    Mutant(
        "stalled-source-refreshed",
        "protocols.interregion",
        "if stalled:",
        "if stalled:\n            expect.horizon, expect.time = advertised, now",
        "the advertisements of a source that delivers nothing keep it in favour",
    ),
    Mutant(
        "switch-without-waiting",
        "protocols.interregion",
        "return elapsed**2 > self.settings.c_scale * self.settings.period**2",
        "return elapsed**2 >= 0.0",
        "a region changes its source at every advertisement",
    ),
    Mutant(
        "gap-accepted",
        "protocols.interregion",
        "if span.lo <= own < span.hi:\n                fresh.append(span.slice(own, span.hi))",
        "if own < span.hi:\n                fresh.append(span)",
        "a head appends foreign spans although a range before them is missing",
    ),
    Mutant(
        "credit-never-returned",
        "protocols.interregion",
        "acked = bisect_right(self.unacked, horizon)",
        "acked = bisect_right(self.unacked, horizon - 1)",
        "the last acknowledged message stays in flight for ever",
    ),
)

PUBLISHING = (
    Mutant(
        "retry-taken-as-new",
        "protocols.publishing",
        "if batch.first == entry.next:",
        "if batch.first <= entry.next:",
        "a repeated batch is published again",
    ),
    Mutant(
        "batches-taken-as-they-come",
        "protocols.publishing",
        "if batch.first > entry.next:",
        "if all(known.first != batch.first for known in entry.recent):\n"
        '            return "new"\n'
        "        if batch.first > entry.next:",
        "repetitions are recognised, but a batch may overtake an earlier one of its publisher",
    ),
    Mutant(
        "retry-repacked",
        "protocols.publishing",
        "return [Send(self.asked, batch) for batch in self.inflight.values()]",
        "one, *rest = list(self.inflight.values()) or [None]\n"
        "        if rest and isinstance(one.rows, ArrowRows) and isinstance(rest[0].rows, ArrowRows):\n"
        "            more = ArrowRows.dense(1 + one.rows.count, rest.pop(0).rows.batch)\n"
        "            one = Publish(one.stream, one.publisher, one.session, one.first, one.rows.concat([more]))\n"
        "        return [Send(self.asked, batch) for batch in (one, *rest) if batch is not None]",
        "a publisher packs two batches into one when it repeats them",
    ),
    Mutant(
        "retry-renumbered",
        "protocols.publishing",
        "return [Send(self.asked, batch) for batch in self.inflight.values()]",
        "old, self.next = list(self.inflight.values()), max(self.inflight, default=self.next)\n"
        "        again = [msgspec.structs.replace(batch, first=batch.first + 1) for batch in old]\n"
        "        self.inflight = {batch.first: batch for batch in again}\n"
        "        self.ordinals = {first + 1: at for first, at in self.ordinals.items()}\n"
        "        self.next += again[-1].rows.count if again else 0\n"
        "        return [Send(self.asked, batch) for batch in again]",
        "a publisher gives its events other numbers when it repeats them",
    ),
    Mutant(
        "session-fence-forgotten",
        "protocols.publishing",
        "if batch.session != entry.session:",
        "if batch.session > entry.session:",
        "batches of an older session are still taken",
    ),
    Mutant(
        "recent-too-short",
        "protocols.publishing",
        "[-self.settings.window :]",
        "[-1:]",
        "the head remembers fewer batches than a publisher may repeat",
    ),
)

PROXY = (
    Mutant(
        "answer-at-append",
        "protocols.proxy",
        "if lsn <= self.log.committed:",
        "if lsn <= self.log.last:",
        "a publisher is answered before its batch is anywhere",
    ),
    Mutant(
        "answers-survive-demotion",
        "protocols.proxy",
        "self.waiting.clear()",
        "pass",
        "a head that was removed answers when somebody else's record gets its lsn",
    ),
    Mutant(
        "retry-answered-anew",
        "protocols.proxy",
        "Published(batch.session, batch.first, verdict.lo, verdict.lo + verdict.count)",
        "Published(batch.session, batch.first, (at := self.log.ends[batch.stream]) - verdict.count, at)",
        "a retry is told the newest numbers instead of its own",
    ),
    Mutant(
        "pending-publishers-forgotten",
        "protocols.proxy",
        "for record in records for part in record.parts if part.stream == stream",
        "for record in records for part in record.parts if not part",
        "a new head remembers publishers from its history alone, not from its log",
    ),
    Mutant(
        "publishers-not-rebuilt",
        "protocols.proxy",
        "self._take_the_lead(now)\n        elif",
        "self.led = self.log.last\n        elif",
        "a new head knows no publishers",
    ),
    Mutant(
        "numbers-reused",
        "protocols.proxy",
        "lo = self.log.ends[batch.stream]",
        "lo = self.log.histories[batch.stream].horizon",
        "the head numbers from the commit point, so two batches in flight share numbers",
    ),
    Mutant(
        "ticks-not-observed",
        "protocols.proxy",
        "clock.observe(self.log.ticks[stream])",
        "pass",
        "a new head takes its ticks from its own clock, which may be behind that of the head before",
    ),
    Mutant(
        "entry-not-written",
        "protocols.proxy",
        "effects = self._append(now, [Span.of(batch.stream, lo, rows)], batch.publisher)",
        "effects = self._append(now, [Span.of(batch.stream, lo, rows)], None)",
        "events are replicated without the memory of who sent them",
    ),
)

PULL = (
    Mutant(
        "gap-delivered",
        "protocols.pull",
        "if span.lo == state.horizon and (",
        "if span.lo >= state.horizon and (",
        "a span is delivered although a range before it is missing",
    ),
    Mutant(
        "held-out-of-order",
        "protocols.pull",
        "span = self.held.pop(0)",
        "span = self.held.pop()",
        "of the spans held back the last one is delivered first",
    ),
    Mutant(
        "delivered-in-reverse",
        "protocols.pull",
        "effects.append(Deliver(span))",
        "effects.insert(0, Deliver(span))",
        "spans that become ready together are handed over last first",
    ),
    Mutant(
        "held-released-early",
        "protocols.pull",
        "if not self.held or self.held[0].lo > self.horizon:",
        "if not self.held or self.held[0].lo > self.horizon + 1:",
        "a span held back is delivered one number too early",
    ),
    Mutant(
        "duplicate-after-fallback",
        "protocols.pull",
        "span = span.slice(state.horizon, span.hi)",
        "pass",
        "the part of an answer that is known already is delivered again",
    ),
    Mutant(
        "recv-unbounded",
        "protocols.pull",
        "if recv.rows > recv.bound:",
        "if recv.rows < 0:",
        "a client keeps everything it has ever delivered",
    ),
    Mutant(
        "fallback-forgotten",
        "protocols.pull",
        "self.request_from_proxy(now, state, effects)\n        effects.append(self._arm_fallback(now, state, wait))",
        "effects.append(self._arm_fallback(now, state, wait))",
        "without progress nobody turns to the proxy",
    ),
    Mutant(
        "proxy-asked-twice",
        "protocols.pull",
        "if gap is not None and not any([ask.fallback for ask in state.asked]):",
        "if gap is not None:",
        "the proxy is asked again although a request is under way",
    ),
    Mutant(
        "offers-only-by-proxy",
        "protocols.pull",
        "effects.append(SendAll(self.fanout.active, state.offer))",
        "pass",
        "clients do not tell each other of what they have delivered",
    ),
)

VIEWS = (
    Mutant(
        "reinforcement-forgotten",
        "protocols.views",
        "kept = self._welcome([src]) if reinforce else []",
        "kept: list[NodeId] = []",
        "the paper's rule without the sender: members drop out of everybody's view (A1.26)",
    ),
    Mutant(
        "swap-without-self",
        "protocols.views",
        "entries.insert(0, (self.me, 0))",
        "pass",
        "a member that exchanges entries does not offer itself",
    ),
    Mutant(
        "older-membership-adopted",
        "protocols.views",
        "membership.epoch <= self._membership.epoch",
        "membership.epoch == self._membership.epoch",
        "gossip turns a member back to an older configuration",
    ),
    Mutant(
        "replica-in-view",
        "protocols.views",
        "barred = {self.me, *self._membership.replicas[:-1]}",
        "barred = {self.me}",
        "replicas that do not gossip get into views",
    ),
)

CLIENT = (
    Mutant(
        "pull-not-started",
        "protocols.client",
        "return [*self.views.start(now), *self.pull.start(now), *published]",
        "return [*self.views.start(now), *published]",
        "a client sets no timers for its fabric: it tells nobody and never asks by itself",
    ),
    Mutant(
        "any-answer-accepted",
        "protocols.client",
        "as span) if self.reading == Read(stream, lo, hi, asof):",
        "as span) if self.reading is not None:",
        "a late answer to another read is taken for the answer",
    ),
)

HISTORY = (
    Mutant(
        "asof-not-raised",
        "core.history",
        "return Span(self.stream, lo, hi, asof if asof > lo else lo, rows, ALL, lost)",
        "return Span(self.stream, lo, hi, lo, rows, ALL, lost)",
        "rows are left out, but the span still says that it is as published",
    ),
    Mutant(
        "floor-not-raised-by-purge",
        "core.history",
        "return self._store.compact(self.floor, low, budget_rows)",
        "floor, self.floor = self.floor, FIRST\n        return self._store.compact(floor, low, budget_rows)",
        "a history answers for an asof whose rows it has purged",
    ),
    Mutant(
        "floor-not-raised-by-spans",
        "core.history",
        "lifted = not span.full and span.asof > self.floor",
        "lifted = False",
        "a history answers for an asof below that of what it received",
    ),
    Mutant(
        "before-n-takes-n",
        "core.history",
        "(seq, min(before, seq)) for",
        "(seq, min(before + 1, seq)) for",
        '"before n" collects n, too',
    ),
    Mutant(
        "before-n-leaves-one",
        "core.history",
        "(seq, min(before, seq)) for",
        "(seq, min(before - 1, seq)) for",
        '"before n" leaves n - 1',
    ),
    Mutant(
        "horizon-off-by-one",
        "core.history",
        "hi = min(hi, self.horizon)\n        limit",
        "hi = min(hi, self.horizon - 1)\n        limit",
        "a history never tells its newest number",
    ),
    Mutant(
        "key-collects-nothing",
        "core.history",
        "self._store.append(span, claim, self.low)",
        "self._store.append(span, None, self.low)",
        "an older row of the same key stays",
    ),
    Mutant(
        "newest-of-key-collected",
        "core.chunks",
        "for victim, killer in zip(claim.previous.tolist(), claim.numbers.tolist(), strict=True):",
        "for killer, victim in [pair for pair in zip(claim.previous.tolist(), claim.numbers.tolist()) if pair[0] > 0]:",
        "of two rows with one key the newer one is collected",
    ),
    Mutant(
        "dead-at-asof-is-gone",
        "core.chunks",
        "chunk.dead[start:stop] >= asof",
        "chunk.dead[start:stop] > asof",
        "a row that is collected by number n is left out as of n already",
    ),
)

SPAN = (
    Mutant(
        "slice-forgets-asof",
        "core.span",
        "return Span(self.stream, lo, hi, asof, self.rows.slice(lo, hi), self.lens, lost)",
        "return Span(self.stream, lo, hi, lo, self.rows.slice(lo, hi), self.lens, lost)",
        "a part of a collected span says that it is as published",
    ),
    Mutant(
        "slice-keeps-rows",
        "core.span",
        "self.rows.slice(lo, hi), self.lens, lost)",
        "self.rows, self.lens, lost)",
        "a part of a span carries the rows of all of it",
    ),
    Mutant(
        "lost-told-as-collected",
        "core.history",
        "lost = tuple(self._lost.intersect(lo, hi)) if self._lost else ()",
        "lost = ()",
        "who catches up takes what is lost for collected, and nobody says a word",
    ),
    Mutant(
        "contradiction-merged-away",
        "core.span",
        "if not agree:",
        "if not agree and x is y:",
        "of two claims that cannot both be true one is taken without a word",
    ),
    Mutant(
        "older-claim-wins",
        "core.span",
        "(x, y) if x.asof <= y.asof else (y, x)",
        "(y, x) if x.asof <= y.asof else (x, y)",
        "join keeps the claim with the smaller asof",
    ),
)

SINKS = (
    Mutant(
        "sink-committed-twice",
        "protocols.sinks",
        "if (past.query, past.batch) == (of.query, of.batch):",
        "if (past.query, past.batch, past.lo) == (of.query, of.batch, 0):",
        "a batch that was committed before is staged and committed again",
    ),
    Mutant(
        "sink-abort-undoes",
        "protocols.sinks",
        'return Step(answers=[(src, answer, 0)], reports=["sink_abort_too_late"])',
        "self.entries.pop(of.key)\n            return Step(answers=[(src, answer, 0)])",
        "an abort after the commit forgets that there was one",
    ),
    Mutant(
        "sink-losers-published",
        "protocols.sinks",
        "return chosen or None",
        "return list(staging.chunks.values()) or None",
        "a commit takes everything that was staged, the attempts that lost included",
    ),
    Mutant(
        "sink-entry-not-written",
        "protocols.sinks",
        "step = Step([*parts, self._entered(moving.key, entry, now)], ",
        "step = Step([*parts], ",
        "a batch is replicated without the memory of it",
    ),
    Mutant(
        "sink-half-moved-forgotten",
        "protocols.sinks",
        "self.moving[known[1]] = Moving(known)",
        "pass",
        "a new head does not go on with a batch that was decided and not all moved",
    ),
    Mutant(
        "sink-numbers-given-away",
        "protocols.sinks",
        "return stream in self.moving",
        "return False",
        "others are numbered in the middle of a batch that takes several records",
    ),
    Mutant(
        "sink-late-rows-staged",
        "protocols.sinks",
        ' or ("gone" if of in self.over else "")',
        "",
        "rows of a run that was aborted come late, are staged once more, and take somebody's room for an hour",
    ),
)

LEASES = (
    Mutant(
        "purge-ignores-leases",
        "core.history",
        "limit = min(self.horizon, self._store.last_kill + 1, *self._leases.values())",
        "limit = min(self.horizon, self._store.last_kill + 1)",
        "rows that somebody holds a lease on are purged",
    ),
    Mutant(
        "lease-lost-at-fail-over",
        "protocols.leases",
        "self.entries = table_in(rows)",
        "self.entries = {}",
        "a new head knows no leases",
    ),
    Mutant(
        "snapshot-without-leased-rows",
        "protocols.log",
        "for span in history.kept(at, history.horizon, chunk_rows):",
        "for span in history.know(at, history.horizon, chunk_rows):",
        "a replica that came by a snapshot lacks the dead rows that leases keep",
    ),
)

CLAIMS = (
    Mutant(
        "first-claim-followed",
        "protocols.catalog",
        "followed = claims.get(self.region) or min(claims.values(), key=age)",
        "followed = claims.get(self.region) or next(iter(claims.values()))",
        "of two regions that give out one name the one counts that was heard of first",
    ),
    Mutant(
        "rows-of-the-other-claim-kept",
        "protocols.proxy",
        "if self.owners.get(stream.name, stream.region) != stream.region:",
        "if False:",
        "a region that goes over to another stream of the same name keeps the rows of the first",
    ),
    Mutant(
        "published-to-what-is-being-deleted",
        "protocols.proxy",
        "held = self.chain.busy or self.sinks.busy(batch.stream) or self._pending(batch.stream)",
        "held = self.chain.busy or self.sinks.busy(batch.stream)",
        "events are acknowledged that find no stream when they are committed",
    ),
    Mutant(
        "cursors-outlive-their-stream",
        "protocols.proxy",
        "self.cursors.forget(definition.name)",
        "pass",
        "durable subscriptions to streams that are deleted are kept for ever",
    ),
    Mutant(
        "ghosts-are-never-asked",
        "protocols.subscriptions",
        "owes = position.unacked or position.quiet > self.settings.ask",
        "owes = position.unacked",
        "who vanishes from a stream at rest keeps its place for ever",
    ),
)

PLANTED: tuple[Mutant, ...] = (
    *CHAIN,
    *LOG,
    *CONFIGURATION,
    *INTER_REGION,
    *PUBLISHING,
    *PROXY,
    *PULL,
    *VIEWS,
    *CLIENT,
    *HISTORY,
    *SPAN,
    *LEASES,
    *SINKS,
    *CLAIMS,
)
