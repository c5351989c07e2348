//! The simulated world: machines, the network between them, clients, faults, and one event after another.

use crate::clients::{Clients, Known, Outcome};
use crate::faults::{Fault, Faults};
use crate::hashes::Hashes;
use crate::inject::DRIFT_PPM_MAX;
use crate::ledger::Ledger;
use crate::network::Network;
use crate::node::Node;
use crate::operator::Operator;
use crate::record::Record;
use crate::schedule::{MS, S, Schedule};
use crate::streams::Streams;
use crate::tasks::Tasks;
use crate::watches::Watches;
use crate::{Counts, Settings};
use anyhow::{Result, bail};
use bytes::Bytes;
use quoin_core::system;
use quoin_engine::Founding;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::PathBuf;

/// A process: the machine, and which of its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) place: usize,
    pub(crate) life: u64,
}

/// What can happen next.
pub(crate) enum Event {
    /// The raft thread's tick is due.
    Tick(At),
    /// The raft thread takes its inputs.
    Raft(At),
    /// The apply thread takes its work.
    Apply(At),
    /// A write of the log thread reaches the disk.
    Write(At),
    /// The log thread has had nothing to do since that many writes.
    Seal(At, u64),
    /// A round of the upkeep is due.
    Upkeep(At),
    /// A founder asks the others.
    AskFounders(At),
    /// A machine starts its process.
    Start(usize),
    /// A node that is to join asks a member who it is.
    Join(usize, u64),
    /// A frame arrives on a connection.
    Frame { from: u64, to: u64, epoch: u64, frame: Bytes },
    /// A member dials another one.
    Dial { from: u64, to: u64 },
    /// A connection is found to be dead.
    Broken { from: u64, to: u64, epoch: u64 },
    /// A chunk of a snapshot is due.
    Chunk(u64),
    /// The end of the stream of a snapshot is noticed where it came from.
    StreamEnds { at: At, stream: u64, to: u64, success: bool },
    /// A process dies.
    Die(At),
    /// A client does something.
    Client,
    /// One of many clients writes through a process.
    Burst { at: At, left: u64 },
    /// One of several clients writes through whatever process runs on a machine.
    Forward { place: usize, left: u64 },
    /// All stores write their memtables out.
    FlushAll,
    /// A client waits no longer.
    GiveUp(u64),
    /// A watcher that was busy asks for more.
    ReadOn { number: usize, visit: u64 },
    /// A watcher moves to another replica, and perhaps will again.
    MoveWatcher { number: usize, again: bool },
    /// A fault.
    Fault(Fault),
    /// A cut heals.
    Heal(u64),
    /// A disk has room again.
    Room(usize),
    /// The operator looks after what is lost.
    Operate,
    /// Time for the checks that look at everything.
    Look,
}

pub(crate) struct World {
    pub(crate) rng: ChaCha8Rng,
    pub(crate) faults: Faults,
    pub(crate) schedule: Schedule<Event>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) founding: Founding,
    pub(crate) network: Network,
    pub(crate) clients: Clients,
    pub(crate) ledger: Ledger,
    pub(crate) hashes: Hashes,
    pub(crate) streams: Streams,
    /// Some disk had no room once.
    pub(crate) space_was_short: bool,
    pub(crate) watches: Watches,
    pub(crate) operator: Operator,
    pub(crate) tasks: Tasks<Known, Outcome>,
    pub(crate) record: Record,
    pub(crate) counts: Counts,
    /// Faults happen, and clients write.
    pub(crate) stormy: bool,
    /// The machine whose wall clock is wrong, and since when none was before it.
    pub(crate) wrong_clock: Option<usize>,
    pub(crate) clocks_right_since: u64,
    folder: tempfile::TempDir,
    folders: u64,
}

/// Where stores are: in memory, if the system has such a place. They are written out and synced often.
fn folder() -> std::io::Result<tempfile::TempDir> {
    let memory = std::path::Path::new("/dev/shm");
    let builder = || tempfile::Builder::new().prefix("quoin-sim-").to_owned();
    if memory.is_dir() {
        builder().tempdir_in(memory).or_else(|_| builder().tempdir())
    } else {
        builder().tempdir()
    }
}

impl World {
    pub(crate) fn new(settings: Settings) -> Result<Self> {
        let mut rng = ChaCha8Rng::seed_from_u64(settings.seed);
        let faults = Faults::draw(&mut rng);
        let count = [1, 3, 3, 3, 5][rng.random_range(0..5)];
        let mut world = Self {
            faults,
            schedule: Schedule::default(),
            nodes: Vec::new(),
            founding: Founding::of(Vec::new()),
            network: Network::default(),
            clients: Clients::draw(&mut rng),
            ledger: Ledger::default(),
            hashes: Hashes::default(),
            streams: Streams::default(),
            space_was_short: false,
            watches: Watches::draw(&mut rng),
            operator: Operator::default(),
            tasks: Tasks::default(),
            record: Record::default(),
            counts: Counts::default(),
            stormy: true,
            wrong_clock: None,
            clocks_right_since: 0,
            folder: folder()?,
            folders: 0,
            rng,
        };
        let mut members = Vec::new();
        let drifts = world.rng.random_bool(0.5);
        for place in 0..count {
            let (folder, disk) = (world.new_folder(), world.rng.random());
            let mut node = Node::new(place, place as u64 + 1, folder, disk);
            if drifts {
                node.drift_ppm = world.rng.random_range(-DRIFT_PPM_MAX..=DRIFT_PPM_MAX);
            }
            let peer_addresses = vec![node.address.clone()];
            members.push(system::Member { id: node.id(), peer_addresses, ..system::Member::default() });
            world.nodes.push(node);
            let after = world.rng.random_range(0..200 * MS);
            world.schedule.after(after, Event::Start(place));
        }
        world.founding = Founding::of(members);
        for fault in world.faults.kinds() {
            world.schedule_fault(fault);
        }
        world.schedule.after(S, Event::Client);
        world.schedule.after(S, Event::Look);
        world.begin_watches();
        Ok(world)
    }

    /// A folder that was not used before.
    pub(crate) fn new_folder(&mut self) -> PathBuf {
        self.folders += 1;
        self.folder.path().join(self.folders.to_string())
    }

    /// Lets the next event happen.
    pub(crate) fn step(&mut self) -> Result<()> {
        let Some(event) = self.schedule.next() else { bail!("nothing is due any more") };
        self.happen(event)?;
        while let Some((known, outcome)) = self.tasks.next_done() {
            self.answered(known, outcome)?;
        }
        match self.record.lock().violation() {
            Some(violation) => bail!("{violation}"),
            None => Ok(()),
        }
    }

    fn happen(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Tick(at) => self.at(at, event, Self::tick),
            Event::Raft(at) => self.at(at, event, Self::raft),
            Event::Apply(at) => self.at(at, event, Self::apply),
            Event::Write(at) => self.at(at, event, Self::write),
            Event::Seal(at, writes) => self.at(at, event, |world, place| world.seal(place, writes)),
            Event::Upkeep(at) => self.at(at, event, Self::upkeep),
            Event::AskFounders(at) => self.at(at, event, Self::ask_founders),
            Event::StreamEnds { at, stream, to, success } => {
                self.at(at, event, |world, place| world.stream_ended(place, stream, to, success))
            }
            Event::Die(at) => self.at(at, event, |world, place| {
                world.kill(place, false);
                Ok(())
            }),
            Event::Burst { at, left } => self.at(at, event, |world, place| world.burst(place, left)),
            Event::Forward { place, left } => self.forward(place, left),
            Event::FlushAll => self.flush_all(),
            Event::Start(place) => self.start(place),
            Event::Join(place, life) => self.join(place, life),
            Event::Frame { from, to, epoch, frame } => self.frame_arrives(from, to, epoch, frame),
            Event::Dial { from, to } => self.dial(from, to),
            Event::Broken { from, to, epoch } => self.broken(from, to, epoch),
            Event::Chunk(stream) => self.chunk(stream),
            Event::Client => self.client(),
            Event::GiveUp(task) => self.give_up(task),
            Event::ReadOn { number, visit } => self.read_on(number, visit),
            Event::MoveWatcher { number, again } => self.move_watcher(number, again),
            Event::Fault(fault) => self.fault(fault),
            Event::Heal(cut) => self.heal_cut(cut),
            Event::Room(place) => self.room(place),
            Event::Operate => self.operate(),
            Event::Look => self.look(),
        }
    }

    /// Something happens in a process, unless it has ended; later, if it stands still.
    fn at(&mut self, at: At, event: Event, step: impl FnOnce(&mut Self, usize) -> Result<()>) -> Result<()> {
        let node = &self.nodes[at.place];
        if node.life != at.life || node.process.is_none() {
            return Ok(());
        }
        if node.paused_until > self.schedule.now() {
            self.schedule.at(node.paused_until, event);
            return Ok(());
        }
        node.set_clocks(self.schedule.now());
        step(self, at.place)?;
        self.follow_up(at.place)
    }

    /// The process that now runs on a machine.
    pub(crate) fn process_at(&self, place: usize) -> At {
        At { place, life: self.nodes[place].life }
    }

    /// The machine of a member.
    pub(crate) fn place_of(&self, id: u64) -> Option<usize> {
        self.nodes.iter().position(|node| node.id() == id)
    }

    /// A number of microseconds below `max`.
    pub(crate) fn up_to(&mut self, max: u64) -> u64 {
        self.rng.random_range(0..max.max(1))
    }
}
