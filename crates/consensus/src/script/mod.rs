//! Golden scripts: `testscripts/*.txt` hold commands, each after `> `, and below each command what happens.
//! `UPDATE_GOLDEN=1 cargo test -p quoin-consensus script` rewrites the answers; read the diff before you keep
//! it.
//!
//! A script drives real replicas, each with a real log on a simulated disk. Messages go through the real
//! frames and wait in the network, and appends wait at the disk, until a command lets them go on. Time passes
//! only by `tick`.
//!
//! ```text
//! cluster N [KEY=VALUE...]    found a cluster of N voters; keys: batch-commands, batches-in-flight,
//!                             forwarded-commands, message-bytes
//! start ID                    start a new member with an empty disk
//! tick ID|* [COUNT]           let time pass for a replica, or for all; a tick is 50 ms
//! campaign ID                 tick a replica until it stops being a follower
//! elect ID                    campaign and stabilize; shows only that ID leads
//! run COUNT                   tick all, then stabilize; COUNT times
//! deliver FROM->TO [COUNT]    deliver what is in the network, in order; FROM and TO may be *
//! drop FROM->TO [COUNT]       lose what is in the network
//! cut FROM->TO...             lose everything sent from now on; `heal` ends it
//! disconnect ID PEER          ID notices that its connection to PEER broke; what was on it is lost
//! write ID|* [COUNT]          complete appends with one sync
//! snapshot FROM->TO [failed]  stream a snapshot
//! stabilize [ID...]           write, deliver and stream among these replicas until nothing is left to do
//! propose ID NAME...          propose commands
//! pace ID NAME...             propose commands that may take long to apply
//! read ID NAME...             ask for linearizable reads
//! change ID CHANGE...         change the configuration: add-voter ID, remove ID, add-learner ID
//! transfer FROM TO            hand leadership over
//! hang ID [off]               from now on ID's disk completes appends only when told to `write`
//! full ID [off]               likewise, and ID's driver says that the disk has no room
//! crash ID [writing]          lose memory, and any part of an append that was being written
//! stop ID                     shut down: who waits to be proposed or to read is told
//! restart ID                  start again from the disk
//! flush ID                    make the state durable and purge the log up to it
//! backup ID, restore ID       copy the durable state, and put the copy back
//! clock ID MS                 move ID's wall clock, forwards or back
//! time                        show the cluster's time at each replica, and the wall clock ahead of it
//! fresh ID|*                  show what a replica must have applied to be how fresh; a tick takes 50 ms
//! status, log ID, state ID    show the replicas, a log, a state
//! quietly COMMAND             show only changes of role and what clients are told
//! ```
//!
//! `3@2` is the entry at index 3 of term 2, `1->2` a message from 1 to 2, `2:` something that happens at 2.

#![allow(clippy::unwrap_used, reason = "test code")]

mod node;
mod print;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use world::World;

fn replay(script: &str) -> String {
    let mut world = World::default();
    let kept = |line: &&str| line.starts_with(['>', '#']) || line.is_empty();
    for line in script.lines().filter(kept) {
        world.say(line);
        if let Some(command) = line.strip_prefix("> ") {
            let ran = catch_unwind(AssertUnwindSafe(|| world.run(command)));
            if let Err(panic) = ran {
                println!("{}> {command}\nfailed", world.into_output());
                resume_unwind(panic);
            }
        }
    }
    world.into_output()
}

#[test]
fn scripts_answer_as_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testscripts");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "the scripts are gone");
    let mut differing = Vec::new();
    for path in paths {
        let recorded = std::fs::read_to_string(&path).unwrap();
        assert!(recorded.starts_with("# "), "{}: a script opens with what it shows", path.display());
        // Shown if it fails.
        println!("{}", path.display());
        let answered = replay(&recorded);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, answered).unwrap();
        } else if recorded != answered {
            differing.push(format!("{}:\n{}", path.display(), first_difference(&recorded, &answered)));
        }
    }
    assert!(differing.is_empty(), "these scripts answer differently now:\n{}", differing.join("\n"));
}

/// The first line that differs, with the lines before it.
fn first_difference(recorded: &str, answered: &str) -> String {
    let (recorded, answered): (Vec<_>, Vec<_>) = (recorded.lines().collect(), answered.lines().collect());
    let same = recorded.iter().zip(&answered).take_while(|(old, new)| old == new).count();
    let before = recorded[same.saturating_sub(8)..same].iter().map(|line| format!("  {line}\n"));
    let old = recorded[same..].iter().take(4).map(|line| format!("- {line}\n"));
    let new = answered[same..].iter().take(4).map(|line| format!("+ {line}\n"));
    before.chain(old).chain(new).collect()
}

#[test]
fn the_same_script_answers_the_same_twice() {
    let script =
        "> cluster 3\n> campaign 1\n> stabilize\n> propose 2 a b\n> stabilize\n> crash 1\n> run 40\n";
    assert_eq!(replay(script), replay(script));
}
