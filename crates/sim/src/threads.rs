//! When the steps of a process's threads are taken, and what comes of them.

use crate::node::Process;
use crate::schedule::{MS, S};
use crate::world::{At, Event, World};
use anyhow::{Result, bail};
use quoin_consensus::greeting::{DialError, Purpose};
use quoin_engine::stepped::{Stepped, UPKEEP_PERIOD, refusal};
use quoin_engine::{Request, Written};
use rand::Rng;
use std::io;

const TICK: u64 = 50 * MS;
/// The pauses of the threads' loops, which only wait.
const SEAL_AFTER: u64 = 100 * MS;
const FULL_DISK_PAUSE: u64 = 500 * MS;
const FOUNDERS_PAUSE: u64 = 200 * MS;

impl World {
    /// A process has begun.
    pub(crate) fn begin_threads(&mut self, place: usize) -> Result<()> {
        let at = self.process_at(place);
        let first = self.up_to(TICK);
        self.schedule.after(first, Event::Tick(at));
        self.schedule.after(UPKEEP_PERIOD.as_micros() as u64, Event::Upkeep(at));
        self.schedule.after(0, Event::AskFounders(at));
        self.follow_up(place)
    }

    fn stepped(&mut self, place: usize) -> &mut Stepped {
        &mut self.process(place).stepped
    }

    pub(crate) fn process(&mut self, place: usize) -> &mut Process {
        self.nodes[place].process.as_mut().expect("events come to processes that run")
    }

    pub(crate) fn tick(&mut self, place: usize) -> Result<()> {
        let at = self.process_at(place);
        // A thread is not woken just in time.
        let late = if self.rng.random_bool(0.02) { self.up_to(20 * MS) } else { self.up_to(MS) };
        self.schedule.after(TICK + late, Event::Tick(at));
        self.stepped(place).raft(true);
        Ok(())
    }

    pub(crate) fn raft(&mut self, place: usize) -> Result<()> {
        let process = self.process(place);
        process.raft_due = false;
        process.stepped.raft(false);
        Ok(())
    }

    pub(crate) fn apply(&mut self, place: usize) -> Result<()> {
        let process = self.process(place);
        process.apply_due = false;
        process.stepped.apply();
        self.compare_state(place)
    }

    pub(crate) fn write(&mut self, place: usize) -> Result<()> {
        let at = self.process_at(place);
        match self.stepped(place).write() {
            Written::Done => {
                let process = self.process(place);
                process.writes += 1;
                let writes = process.writes;
                self.schedule.after(SEAL_AFTER, Event::Seal(at, writes));
            }
            Written::Full => self.schedule.after(FULL_DISK_PAUSE, Event::Write(at)),
            Written::Failed => {}
        }
        Ok(())
    }

    pub(crate) fn seal(&mut self, place: usize, writes: u64) -> Result<()> {
        let process = self.process(place);
        if process.writes == writes {
            process.stepped.seal();
        }
        Ok(())
    }

    pub(crate) fn upkeep(&mut self, place: usize) -> Result<()> {
        let at = self.process_at(place);
        // It waits for answers: it is asked again until it has them.
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let over = self.stepped(place).poll_upkeep(&mut context).is_ready();
        let after = if over { UPKEEP_PERIOD.as_micros() as u64 } else { 20 * MS };
        self.schedule.after(after, Event::Upkeep(at));
        Ok(())
    }

    pub(crate) fn ask_founders(&mut self, place: usize) -> Result<()> {
        let Some(mut process) = self.nodes[place].process.take() else { return Ok(()) };
        let asks_on = {
            let (world, id) = (&*self, self.nodes[place].id());
            let disk = world.nodes[place].identity().disk;
            process
                .stepped
                .ask_founders(|founder| world.find_founder(place, (id, disk, process.incarnation), founder))
        };
        self.nodes[place].process = Some(process);
        self.check_lost()?;
        if asks_on {
            let at = self.process_at(place);
            self.schedule.after(FOUNDERS_PAUSE, Event::AskFounders(at));
        }
        Ok(())
    }

    fn find_founder(
        &self,
        place: usize,
        (from, disk, incarnation): (u64, u64, u64),
        founder: u64,
    ) -> Result<&Stepped, DialError> {
        let unreachable = || DialError::Io(io::ErrorKind::TimedOut.into());
        let other =
            self.place_of(founder).filter(|other| self.reaches(place, *other)).ok_or_else(unreachable)?;
        let node = &self.nodes[other];
        let (Some(process), Some(who)) = (&node.process, node.who()) else { return Err(unreachable()) };
        let address = self.nodes[place].address.clone();
        let greeting = quoin_consensus::greeting::Greeting {
            purpose: Purpose::Found,
            cluster: who.cluster,
            from,
            to: founder,
            incarnation,
            disk,
            address,
        };
        match process.stepped.judge(&greeting, who, process.peers.contains(&from)) {
            quoin_consensus::greeting::Verdict::Welcome => Ok(&process.stepped),
            refused => Err(refusal(refused)),
        }
    }

    /// A process has done something: what it asks for is done, and its threads go on with what waits for them.
    pub(crate) fn follow_up(&mut self, place: usize) -> Result<()> {
        let at = self.process_at(place);
        let Some(process) = &mut self.nodes[place].process else { return Ok(()) };
        if let Some(reason) = process.stepped.failure() {
            return self.ended(place, &reason);
        }
        for request in process.surroundings.take_requests() {
            match request {
                Request::Send { to, message } => self.send(place, to, &message),
                Request::Snapshot { to } => self.begin_stream(place, to)?,
                Request::Peers(addresses) => self.set_peers(place, &addresses),
                Request::Part(removed) => self.part_with(place, &removed),
            }
        }
        let Some(process) = &mut self.nodes[place].process else { return Ok(()) };
        let (input, work) = (process.stepped.has_input(), process.stepped.has_work());
        let (raft, apply) = (input && !process.raft_due, work && !process.apply_due);
        (process.raft_due, process.apply_due) = (process.raft_due || input, process.apply_due || work);
        let writes = process.stepped.begin_write();
        if raft {
            let after = self.up_to(100);
            self.schedule.after(after, Event::Raft(at));
        }
        if apply {
            let after = if self.rng.random_bool(0.01) { self.up_to(100 * MS) } else { self.up_to(200) };
            self.schedule.after(after, Event::Apply(at));
        }
        if writes {
            self.begin_write(at);
        }
        Ok(())
    }

    fn begin_write(&mut self, at: At) {
        let disk = self.faults.disk;
        let slow = self.stormy && self.rng.random_bool(disk.slow);
        let takes = if slow { self.up_to(disk.slow_us_max) } else { self.up_to(disk.usual_us_max) };
        let begins = self.nodes[at.place].hangs_until.max(self.schedule.now());
        self.schedule.at(begins + takes, Event::Write(at));
    }

    /// A process has ended by itself, which it must have a reason for.
    fn ended(&mut self, place: usize, reason: &str) -> Result<()> {
        let node = &self.nodes[place];
        let (id, excused) = (node.id(), node.lost || self.operator.has_removed(node.id()));
        if !excused && !node.sync_failed {
            bail!("replica {id} has ended: {reason}");
        }
        self.end(place, 20 * MS);
        if self.nodes[place].gone {
            return Ok(());
        }
        if excused {
            self.schedule.after(S, Event::Operate);
        } else {
            let after = self.up_to(2 * S);
            self.schedule.after(after, Event::Start(place));
        }
        Ok(())
    }
}
