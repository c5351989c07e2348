//! The replicas of a script, the network between them, and the commands.

use super::node::{Node, Running, State};
use super::print;
use crate::GROUP;
use crate::configuration::{Change, Configuration};
use crate::frame::{FRAME_HEADER, FrameBuffer, decode_body, decode_header};
use crate::message::PeerMessage;
use crate::replica::{Effects, Lost, Options, Proposal, Replica};
use bytes::Bytes;
use quoin_core::machines::{FOUNDING_INDEX, FOUNDING_TERM};
use quoin_core::{Command, Face, Stamp};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Rounds after which a cluster that never comes to rest fails its script.
const STABILIZE_ROUNDS_MAX: usize = 1000;

/// Milliseconds of a tick.
pub(super) const TICK_MS: u64 = 50;
/// What wall clocks show when a script begins.
const FIRST_MS: u64 = 1_000_000_000;

/// The command that goes with a change of the configuration: in a node, the change of the member list.
const MEMBERS: &str = "members";

#[derive(Default)]
pub(super) struct World {
    nodes: BTreeMap<u64, Node>,
    options: Options,
    starts: u64,
    network: Vec<Message>,
    cut: BTreeSet<(u64, u64)>,
    snapshots_wanted: Vec<(u64, u64)>,
    /// Who led in each term.
    leaders: BTreeMap<u64, u64>,
    /// What was applied at each index.
    applied: BTreeMap<u64, String>,
    quiet: bool,
    out: String,
}

struct Message {
    from: u64,
    to: u64,
    message: PeerMessage,
}

impl World {
    pub(super) fn say(&mut self, text: impl AsRef<str>) {
        writeln!(self.out, "{}", text.as_ref()).unwrap();
    }

    pub(super) fn into_output(self) -> String {
        self.out
    }

    /// What `quietly` leaves out.
    fn detail(&mut self, text: impl AsRef<str>) {
        if !self.quiet {
            self.say(text);
        }
    }

    pub(super) fn run(&mut self, line: &str) {
        let line = line.strip_prefix("quietly ").inspect(|_| self.quiet = true).unwrap_or(line);
        let words: Vec<&str> = line.split_whitespace().collect();
        match (words[0], &words[1..]) {
            ("cluster", [size, options @ ..]) => self.cluster(number(size), options),
            ("start", [id]) => {
                self.nodes.insert(number(id), Node::new(number(id), State::default()));
                self.start(number(id));
            }
            ("tick", [ids, count @ ..]) => {
                for _ in 0..count.first().map_or(1, |count| number(count)) {
                    self.running_ids(ids).into_iter().for_each(|id| self.tick(id));
                }
            }
            ("campaign", [id]) => self.campaign(number(id)),
            ("elect", [id]) => self.elect(number(id)),
            ("run", [count]) => {
                for _ in 0..number(count) {
                    self.running_ids("*").into_iter().for_each(|id| self.tick(id));
                    self.stabilize(&[]);
                }
            }
            ("deliver", [link, count @ ..]) => {
                for message in self.take_messages(link, count) {
                    self.deliver(message);
                }
            }
            ("drop", [link, count @ ..]) => {
                for message in self.take_messages(link, count) {
                    self.show_lost(&message);
                }
            }
            ("cut", links) => {
                for link in links {
                    let (from, to) = link_of(link);
                    let pairs = self.nodes.keys().flat_map(|a| self.nodes.keys().map(|b| (*a, *b)));
                    let pairs: Vec<_> = pairs.filter(|pair| matches(pair, from, to)).collect();
                    self.cut.extend(pairs);
                }
            }
            ("heal", []) => self.cut.clear(),
            ("disconnect", [id, peer]) => self.disconnect(number(id), number(peer)),
            ("write", [ids, count @ ..]) => {
                let count = count.first().map_or(usize::MAX, |count| number(count) as usize);
                self.running_ids(ids).into_iter().for_each(|id| self.write(id, count));
            }
            ("snapshot", [link, failed @ ..]) => {
                let (from, to) = link_of(link);
                self.snapshot(from.unwrap(), to.unwrap(), *failed != ["failed"]);
            }
            ("stabilize", ids) => {
                self.stabilize(&ids.iter().map(|id| number(id)).collect::<Vec<_>>());
            }
            ("propose", [id, names @ ..]) => self.propose(number(id), names, Replica::propose),
            ("pace", [id, names @ ..]) => self.propose(number(id), names, Replica::propose_paced),
            ("read", [id, names @ ..]) => {
                let running = self.running(number(id));
                for name in names {
                    let waiter = running.reader(name);
                    running.replica.read(waiter);
                }
                self.work(number(id));
            }
            ("change", [id, changes @ ..]) => self.change(number(id), changes),
            ("transfer", [from, to]) => {
                self.running(number(from)).replica.transfer_leader(number(to));
                self.work(number(from));
            }
            ("crash", [id, writing @ ..]) => self.crash(number(id), *writing == ["writing"]),
            ("stop", [id]) => {
                self.running(number(id)).replica.fail_queue(Lost::NoLeader);
                self.tell_clients(number(id));
                self.crash(number(id), false);
            }
            ("hang", [id, off @ ..]) => self.node(number(id)).hangs = *off != ["off"],
            ("full", [id, off @ ..]) => {
                let full = *off != ["off"];
                self.node(number(id)).hangs = full;
                self.running(number(id)).replica.set_full(full);
            }
            ("restart", [id]) => self.start(number(id)),
            ("flush", [id]) => {
                let node = self.node(number(id));
                let running = node.running.as_ref().expect("it runs");
                running.log.purge(GROUP, running.state.index).unwrap();
                node.durable = running.state.clone();
            }
            ("backup", [id]) => {
                let node = self.node(number(id));
                node.backup = Some(node.durable.clone());
            }
            ("restore", [id]) => {
                let node = self.node(number(id));
                node.durable = node.backup.clone().expect("a backup was made");
            }
            ("clock", [id, ms]) => self.node(number(id)).clock_ms += ms.parse::<i64>().unwrap(),
            ("time", []) => self.time(),
            ("status", []) => self.status(),
            ("fresh", ids) => {
                for id in ids.iter().flat_map(|ids| self.running_ids(ids)).collect::<Vec<_>>() {
                    let text = self.running(id).freshness();
                    self.say(format!("{id}: {text}"));
                }
            }
            ("log", [id]) => self.show_log(number(id)),
            ("state", [id]) => {
                let state = &self.running(number(id)).state;
                let text = format!("{}@{} [{}]", state.index, state.term, state.commands.join(" "));
                self.say(text);
            }
            _ => panic!("unknown command {line:?}"),
        }
        self.quiet = false;
        self.check();
    }

    /// What holds after every command, whatever the script does.
    fn check(&mut self) {
        for (id, node) in &self.nodes {
            let Some(running) = &node.running else { continue };
            if running.replica.is_leader() {
                let first = *self.leaders.entry(running.replica.term()).or_insert(*id);
                assert_eq!(first, *id, "two leaders of term {}", running.replica.term());
            }
            assert!(
                running.state.index <= running.replica.committed(),
                "{id} has applied what is uncommitted"
            );
        }
    }

    fn node(&mut self, id: u64) -> &mut Node {
        self.nodes.get_mut(&id).unwrap_or_else(|| panic!("there is no replica {id}"))
    }

    fn running(&mut self, id: u64) -> &mut Running {
        self.node(id).running.as_mut().unwrap_or_else(|| panic!("replica {id} does not run"))
    }

    fn running_ids(&self, ids: &str) -> Vec<u64> {
        if ids != "*" {
            return vec![number(ids)];
        }
        self.nodes.values().filter(|node| node.running.is_some()).map(|node| node.id).collect()
    }

    fn cluster(&mut self, size: u64, options: &[&str]) {
        for option in options {
            let (key, value) = option.split_once('=').unwrap_or((option, "1"));
            match key {
                "batch-commands" => self.options.batch_commands_max = number(value) as usize,
                "batches-in-flight" => self.options.batches_in_flight_max = number(value) as usize,
                "forwarded-commands" => self.options.forwarded_commands_max = number(value) as usize,
                "message-bytes" => self.options.message_bytes_max = number(value),
                _ => panic!("unknown option {option:?}"),
            }
        }
        let founding = State {
            index: FOUNDING_INDEX.0,
            term: FOUNDING_TERM.0,
            configuration: Configuration::of_voters(1..=size),
            commands: Vec::new(),
        };
        for id in 1..=size {
            self.nodes.insert(id, Node::new(id, founding.clone()));
            self.start(id);
        }
    }

    fn start(&mut self, id: u64) {
        self.starts += 1;
        let options = Options { seed: 1000 * self.starts, ..self.options.clone() };
        let started = self.node(id).start(options);
        match started {
            Ok(()) => {
                let running = self.running(id);
                let (applied, base) = (&running.state, running.log.base(GROUP));
                let hard = running.log.hard_state(GROUP);
                let hard = hard
                    .map(|hard| format!(", term {} vote {} commit {}", hard.term, hard.vote, hard.commit));
                let text = format!(
                    "{id}: starts, applied {}@{}, log after {}@{} up to {}{}",
                    applied.index,
                    applied.term,
                    base.index,
                    base.term,
                    running.log.last_index(GROUP),
                    hard.unwrap_or_default()
                );
                self.detail(text);
                self.see_clock(id, 0);
                self.work(id);
            }
            Err(error) => self.say(format!("{id}: does not start: {error}")),
        }
    }

    fn tick(&mut self, id: u64) {
        self.see_clock(id, 1);
        let running = self.running(id);
        running.replica.tick();
        running.give_up();
        self.work(id);
    }

    /// Shows a replica its clocks, as they are `ticks` ticks from now.
    fn see_clock(&mut self, id: u64, ticks: u64) {
        let node = self.node(id);
        let (passed_ms, moved_ms) = (node.passed_ms, node.clock_ms);
        let replica = &mut self.running(id).replica;
        let now_ms = TICK_MS * (replica.ticks() + ticks);
        replica.pass(now_ms);
        replica.set_wall(Stamp((FIRST_MS + passed_ms + now_ms).saturating_add_signed(moved_ms)));
    }

    fn campaign(&mut self, id: u64) {
        for _ in 0..=2 * self.options.election_ticks {
            self.tick(id);
            if !self.running(id).is_follower() {
                return;
            }
        }
        panic!("{id} does not campaign");
    }

    fn elect(&mut self, id: u64) {
        let shown = self.out.len();
        self.campaign(id);
        self.stabilize(&[]);
        self.out.truncate(shown);
        assert!(self.running(id).replica.is_leader(), "{id} was not elected");
        let role = self.running(id).role();
        self.say(format!("{id}: {role}"));
    }

    fn propose(&mut self, id: u64, names: &[&str], propose: fn(&mut Replica, Proposal)) {
        let running = self.running(id);
        for name in names {
            let waiter = running.writer(name);
            propose(&mut running.replica, Proposal { command: command(Face::Kv, name), waiter });
        }
        self.work(id);
    }

    fn change(&mut self, id: u64, words: &[&str]) {
        let changes: Vec<Change> = words
            .chunks_exact(2)
            .map(|words| match words[0] {
                "add-voter" => Change::AddVoter(number(words[1])),
                "remove" => Change::Remove(number(words[1])),
                "add-learner" => Change::AddLearner(number(words[1])),
                other => panic!("unknown change {other:?}"),
            })
            .collect();
        let running = self.running(id);
        let waiter = running.writer(MEMBERS);
        running.replica.change_configuration(&changes, Some(command(Face::System, MEMBERS)), waiter);
        self.work(id);
    }

    fn crash(&mut self, id: u64, writing: bool) {
        let seed = self.starts;
        let node = self.node(id);
        let mut running = node.running.take().expect("it runs");
        if writing {
            let append = running.appends.pop_front().expect("an append is being written");
            node.disk.fail_next_sync();
            running.log.append(&append.records).unwrap_err();
        }
        node.passed_ms += TICK_MS * running.replica.ticks();
        drop(running);
        node.disk.crash(seed);
        self.snapshots_wanted.retain(|(from, _)| *from != id);
    }

    fn disconnect(&mut self, id: u64, peer: u64) {
        for lost in self.take_messages(&format!("{id}->{peer}"), &[]) {
            self.show_lost(&lost);
        }
        self.running(id).replica.peer_lost(peer);
        self.work(id);
    }

    /// Takes what is in the network on `link`.
    fn take_messages(&mut self, link: &str, count: &[&str]) -> Vec<Message> {
        let (from, to) = link_of(link);
        let mut left = count.first().map_or(u64::MAX, |count| number(count));
        let mut taken = Vec::new();
        for message in std::mem::take(&mut self.network) {
            if left > 0 && matches(&(message.from, message.to), from, to) {
                left -= 1;
                taken.push(message);
            } else {
                self.network.push(message);
            }
        }
        taken
    }

    fn show_lost(&mut self, Message { from, to, message }: &Message) {
        self.detail(format!("{from}->{to} lost: {}", print::message(message)));
    }

    fn send(&mut self, from: u64, mut messages: Vec<(u64, PeerMessage)>) {
        // A link keeps its order; between links there is none.
        messages.sort_by_key(|(to, _)| *to);
        for (to, message) in messages {
            let message = Message { from, to, message: over_the_wire(&message) };
            if self.cut.contains(&(from, to)) {
                self.show_lost(&message);
            } else {
                self.detail(format!("{from}->{to} {}", print::message(&message.message)));
                self.network.push(message);
            }
        }
    }

    fn deliver(&mut self, Message { from, to, message }: Message) {
        if self.nodes.get(&to).is_none_or(|node| node.running.is_none()) {
            return self.show_lost(&Message { from, to, message });
        }
        self.running(to).replica.step(from, message);
        self.work(to);
    }

    /// Completes up to `count` appends with one sync, as the log's thread does.
    fn write(&mut self, id: u64, count: usize) {
        let running = self.running(id);
        let count = count.min(running.appends.len());
        let appends: Vec<_> = running.appends.drain(..count).collect();
        let Some(last) = appends.last().map(|append| append.number) else { return };
        let (mut records, mut messages) = (Vec::new(), Vec::new());
        for append in appends {
            records.extend(append.records);
            messages.extend(append.messages);
        }
        if !records.is_empty() {
            running.log.append(&records).unwrap();
        }
        self.detail(format!("{id}: has written"));
        self.send(id, messages);
        self.running(id).replica.written(last);
        self.work(id);
    }

    fn snapshot(&mut self, from: u64, to: u64, arrives: bool) {
        self.snapshots_wanted.retain(|wanted| *wanted != (from, to));
        let state = self.running(from).state.clone();
        let there = self.nodes.get(&to).is_some_and(|node| node.running.is_some());
        let success = arrives && there && !self.cut.contains(&(from, to));
        if success {
            self.detail(format!("{from}->{to} snapshot of {}@{}", state.index, state.term));
            let running = self.running(to);
            running.offered = Some(state.clone());
            running.replica.offer_snapshot(from, state.index, state.term, &state.configuration);
            self.work(to);
            if self.running(to).offered.take().is_some() {
                self.detail(format!("{to}: does not want the snapshot"));
            }
        } else {
            self.detail(format!("{from}->{to} lost: snapshot of {}@{}", state.index, state.term));
        }
        self.running(from).replica.snapshot_sent(to, success);
        self.work(from);
    }

    fn stabilize(&mut self, ids: &[u64]) {
        let among = |id: u64| ids.is_empty() || ids.contains(&id);
        for _ in 0..STABILIZE_ROUNDS_MAX {
            let (mut messages, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.network)
                .into_iter()
                .partition(|message| among(message.from) && among(message.to));
            self.network = others;
            messages.sort_by_key(|message| message.to);
            let delivered = !messages.is_empty();
            messages.into_iter().for_each(|message| self.deliver(message));
            let unwritten =
                |node: &&Node| !node.hangs && node.running.as_ref().is_some_and(|it| !it.appends.is_empty());
            let writers: Vec<u64> = self.nodes.values().filter(unwritten).map(|node| node.id).collect();
            let writers: Vec<u64> = writers.into_iter().filter(|id| among(*id)).collect();
            writers.iter().for_each(|id| self.write(*id, usize::MAX));
            let snapshot =
                self.snapshots_wanted.iter().find(|(from, to)| among(*from) && among(*to)).copied();
            if let Some((from, to)) = snapshot {
                self.snapshot(from, to, true);
            }
            if !delivered && writers.is_empty() && snapshot.is_none() {
                return;
            }
        }
        panic!("the cluster does not come to rest");
    }

    /// Does all that a replica asks, until it asks nothing more.
    fn work(&mut self, id: u64) {
        loop {
            let running = self.running(id);
            let effects = running.replica.effects(TICK_MS * running.replica.ticks());
            let (role, committed) = running.changes();
            if let Some(role) = role {
                self.say(format!("{id}: {role}"));
            }
            if let Some(committed) = committed {
                self.detail(format!("{id}: committed up to {committed}"));
            }
            if effects.is_empty() {
                break;
            }
            self.carry_out(id, effects);
            self.tell_clients(id);
        }
        self.tell_clients(id);
    }

    fn carry_out(&mut self, id: u64, effects: Effects) {
        let Effects { messages, append, expectations, committed, barriers, snapshots_wanted, install } =
            effects;
        for expectation in expectations {
            let (index, term, position) = (expectation.index, expectation.term, expectation.position);
            let count = expectation.waiters.len();
            self.detail(format!("{id}: {count} waiting for {index}@{term} from position {position}"));
            self.running(id).expect(expectation);
        }
        self.send(id, messages);
        if let Some((index, term)) = install {
            self.detail(format!("{id}: installs the snapshot of {index}@{term}"));
            let node = self.node(id);
            let running = node.running.as_mut().expect("it runs");
            let state = running.offered.take().expect("an accepted snapshot was offered");
            node.durable = state.clone();
            running.installed(state);
        }
        if let Some(append) = append {
            let to: BTreeSet<String> = append.messages.iter().map(|(to, _)| to.to_string()).collect();
            let to: Vec<String> = to.into_iter().collect();
            let then = if to.is_empty() { String::new() } else { format!(", then tells {}", to.join(" ")) };
            self.detail(format!("{id}: writes {}{then}", print::records(&append.records)));
            self.running(id).appends.push_back(append);
        }
        for entry in committed {
            let text = print::content(&entry.content);
            self.detail(format!("{id}: applies {}@{} {text}", entry.index, entry.term));
            let known = self.applied.entry(entry.index).or_insert_with(|| text.clone());
            assert_eq!(*known, text, "{id} applies something else at {}", entry.index);
            self.running(id).apply(entry);
        }
        let running = self.running(id);
        running.replica.applied(running.state.index);
        for barrier in barriers {
            let (index, count) = (barrier.index, barrier.waiters.len());
            self.detail(format!("{id}: {count} may read from {index} on"));
            self.running(id).wait(barrier);
        }
        for to in snapshots_wanted {
            self.detail(format!("{id}: {to} needs a snapshot"));
            self.snapshots_wanted.push((id, to));
        }
    }

    fn tell_clients(&mut self, id: u64) {
        for answer in self.running(id).answers() {
            self.say(format!("{id}: {answer}"));
        }
    }

    fn status(&mut self) {
        let nodes: Vec<_> = self.nodes.values().map(|node| (node.id, node.running.as_ref())).collect();
        let mut lines = Vec::new();
        for (id, running) in nodes {
            lines.push(match running {
                None => format!("{id}: down"),
                Some(running) => {
                    let replica = &running.replica;
                    format!(
                        "{id}: {}, committed {}, applied {}, log {}..={}, {}",
                        running.role(),
                        replica.committed(),
                        running.state.index,
                        running.log.first_index(GROUP),
                        running.log.last_index(GROUP),
                        print::configuration(&replica.configuration())
                    )
                }
            });
        }
        lines.into_iter().for_each(|line| self.say(line));
    }

    /// The time at each replica, from when the script began.
    fn time(&mut self) {
        let running = self.nodes.values().filter_map(|node| Some((node.id, node.running.as_ref()?)));
        let lines: Vec<_> = running
            .map(|(id, running)| {
                let time = running.replica.time().0 as i64 - FIRST_MS as i64;
                match running.replica.wall_ahead_ms() {
                    Some(ahead) => format!("{id}: time {time} ms, wall clock {ahead:+} ms"),
                    None => format!("{id}: does not know the time"),
                }
            })
            .collect();
        lines.into_iter().for_each(|line| self.say(line));
    }

    fn show_log(&mut self, id: u64) {
        let log = &self.running(id).log;
        let base = log.base(GROUP);
        let range = log.first_index(GROUP)..log.last_index(GROUP) + 1;
        let entries = log.entries(GROUP, range, u64::MAX).unwrap();
        self.say(format!("after {}@{}", base.index, base.term));
        entries.iter().for_each(|entry| self.say(print::entry(entry)));
    }
}

fn command(face: Face, name: &str) -> Command {
    Command { face, bytes: Bytes::copy_from_slice(name.as_bytes()) }
}

/// The message as the other side reads it.
fn over_the_wire(message: &PeerMessage) -> PeerMessage {
    let mut frames = FrameBuffer::default();
    frames.push(GROUP, message);
    let mut wire = Bytes::from(frames.take().concat());
    let (length, crc) = decode_header(wire.split_to(FRAME_HEADER)[..].try_into().unwrap()).unwrap();
    assert_eq!(wire.len(), length);
    decode_body(wire, crc).unwrap().1
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is not a number"))
}

/// `1->2`, with `None` for `*`.
fn link_of(word: &str) -> (Option<u64>, Option<u64>) {
    let (from, to) = word.split_once("->").unwrap_or_else(|| panic!("{word:?} is not a link"));
    let end = |word: &str| (word != "*").then(|| number(word));
    (end(from), end(to))
}

fn matches(pair: &(u64, u64), from: Option<u64>, to: Option<u64>) -> bool {
    from.is_none_or(|from| from == pair.0) && to.is_none_or(|to| to == pair.1)
}
