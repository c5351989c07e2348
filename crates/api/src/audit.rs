//! What is worth a record in the audit trail, and the record of a request while it is served.
//!
//! An *act* belongs to the task of its request, as its caller does. Whoever serves it says to what it is done
//! ([`about`]); keys are noted where rights to them are judged (`auth/keys.rs`). The record is handed in when the last task that
//! works on the act is done with it, so that it says what came of it.
//!
//! | recorded | when |
//! |---|---|
//! | administrative acts (`auth/rules.rs`, `resp/record.rs`), refused ones too | always |
//! | passwords that were wrong | always |
//! | log-ins; reads and writes of chosen keys; calls of chosen parts | by setting |
//!
//! Deliberately absent: values, and whole requests. Names, keys, numbers and paths are all that [`about`] is told.

use crate::accept::Peer;
use crate::auth::{Need, rules};
use crate::error::{Error, Kind};
use bytes::Bytes;
use parking_lot::Mutex;
use quoin_audit::{About, Entry, Full, Outcome, Place, Trail, Who};
use quoin_core::auth::Part;
use quoin_core::kv::txn_operation::Step;
use quoin_core::kv::{Operation, Txn};
use quoin_engine::Engine;
use std::fmt::{self, Display};
use std::sync::Arc;
use tonic::Code;

/// What is recorded, and where.
#[derive(Clone, Debug)]
pub struct Audit {
    /// Takes the records.
    pub trail: Trail,
    /// Keys whose reads or writes are recorded.
    pub keys: Vec<ChosenKeys>,
    /// Parts of the node, with the rights whose use is recorded.
    pub parts: Vec<(Part, u32)>,
    /// Log-ins are recorded too, not only those that failed.
    pub log_ins: bool,
}

/// Keys that begin alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenKeys {
    /// How they begin.
    pub prefix: Bytes,
    /// Whether reads are recorded.
    pub reads: bool,
    /// Whether writes are recorded.
    pub writes: bool,
}

impl ChosenKeys {
    /// Whether one of them is in a range; `range_end` as in etcd.
    fn meet(&self, key: &[u8], range_end: &[u8]) -> bool {
        match range_end {
            b"" => key.starts_with(&self.prefix),
            _ if key.starts_with(&self.prefix) => true,
            b"\0" => key <= &self.prefix[..],
            end => key <= &self.prefix[..] && &self.prefix[..] < end,
        }
    }
}

/// What is done to keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Reads,
    Writes,
}

impl Use {
    fn word(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Writes => "writes",
        }
    }
}

tokio::task_local! {
    static ACT: Arc<Act>;
}

/// A request that may be worth a record.
pub(crate) struct Act {
    audit: Arc<Audit>,
    engine: Engine,
    /// Its answers go on: each use of chosen keys has a record of its own.
    goes_on: bool,
    state: Mutex<State>,
}

struct State {
    entry: Entry,
    /// The record's, if it is worth one.
    place: Option<Place>,
}

impl fmt::Debug for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Act").finish_non_exhaustive()
    }
}

impl Audit {
    /// Whether a call may be worth a record, and whether it is in any case.
    pub(crate) fn of_call(&self, call: &str, need: Need) -> Option<bool> {
        self.of_need(need, rules::is_administrative(call, need))
    }

    /// As [`Self::of_call`], of a page.
    pub(crate) fn of_page(&self, need: Need) -> Option<bool> {
        self.of_need(need, matches!(need, Need::Part(_, rights) if rights & rules::ADMINISTERS != 0))
    }

    fn of_need(&self, need: Need, administrative: bool) -> Option<bool> {
        match need {
            _ if administrative => Some(true),
            Need::Part(part, rights) => self.has_chosen(part, rights).then_some(true),
            Need::Keys => (!self.keys.is_empty()).then_some(false),
            _ => None,
        }
    }

    /// Whether the use of these rights is recorded.
    pub(crate) fn has_chosen(&self, part: Part, rights: u32) -> bool {
        self.parts.iter().any(|chosen| chosen.0 == part && chosen.1 & rights != 0)
    }

    /// Whether this use of keys is recorded.
    pub(crate) fn has_chosen_keys(&self, how: Use, key: &[u8], range_end: &[u8]) -> bool {
        let chosen = |keys: &&ChosenKeys| match how {
            Use::Reads => keys.reads,
            Use::Writes => keys.writes,
        };
        self.keys.iter().filter(chosen).any(|keys| keys.meet(key, range_end))
    }

    /// Records a password, whether it was right or not.
    pub(crate) fn log_in(&self, name: &str, peer: Option<&Peer>, failed: Option<&Error>) {
        if failed.is_none() && !self.log_ins {
            return;
        }
        let address = peer.map(Peer::to_string).unwrap_or_default();
        let mut who = Who { address, ..Who::default() };
        let (mut about, mut outcome) = (About::default(), Outcome::Done);
        match failed {
            // It may be anybody's: not the user who did it.
            Some(_) => {
                about.push("user", name);
                outcome = Outcome::Refused;
            }
            None => who.user = name.to_owned(),
        }
        let code = failed.map(code_of).unwrap_or_default().to_owned();
        let entry = Entry { who, act: "log-in".into(), about, outcome, code, revision: None };
        match failed {
            Some(_) => self.trail.record_refused(self.trail.spare_place(), entry),
            None => self.trail.record(self.trail.spare_place(), entry),
        }
    }
}

/// The kind of an error, without its text: that may quote what was asked.
fn code_of(error: &Error) -> &'static str {
    match tonic::Status::from(error.clone()).code() {
        Code::ResourceExhausted => "too many",
        _ => "wrong password",
    }
}

impl From<Full> for Error {
    fn from(full: Full) -> Self {
        Self::Refused(Kind::TooMany, full.to_string())
    }
}

impl Act {
    /// The record of a request that begins. `certain`: it is worth one in any case.
    ///
    /// # Errors
    /// There is no place for it, and without a record it is not done.
    pub(crate) fn begin(
        (audit, engine): (&Arc<Audit>, &Engine),
        who: Who,
        act: String,
        certain: bool,
        goes_on: bool,
    ) -> Result<Arc<Self>, Full> {
        let place = certain.then(|| audit.trail.place()).transpose()?;
        let (outcome, code) = (Outcome::Unknown, "broken off".to_owned());
        let entry = Entry { who, act, about: About::default(), outcome, code, revision: None };
        let (audit, engine) = (Arc::clone(audit), engine.clone());
        Ok(Arc::new(Self { audit, engine, goes_on, state: Mutex::new(State { entry, place }) }))
    }

    /// Runs `work` as a part of it.
    pub(crate) fn run<W: Future>(self: &Arc<Self>, work: W) -> impl Future<Output = W::Output> + use<W> {
        ACT.scope(Arc::clone(self), work)
    }

    /// As [`Self::run`], at once.
    pub(crate) fn run_at_once<T>(self: &Arc<Self>, work: impl FnOnce() -> T) -> T {
        ACT.sync_scope(Arc::clone(self), work)
    }

    /// This user does it.
    pub(crate) fn of_user(&self, name: &str) {
        self.state.lock().entry.who.user = name.to_owned();
    }

    /// To what it is done.
    pub(crate) fn about(&self, name: &'static str, value: &str) {
        self.state.lock().entry.about.push(name, value);
    }

    /// It waits for what decides whether it is done, and takes no place meanwhile: there are few, for all clients. Told as a
    /// part of one of `others` if there is a like one.
    pub(crate) fn waits_with(self: Arc<Self>, others: &mut Vec<Arc<Self>>) {
        let mut state = self.state.lock();
        state.place = None;
        let Entry { who, act, .. } = &state.entry;
        let alike = others.iter().find(|other| {
            let other = other.state.lock();
            other.entry.act == *act && other.entry.who == *who
        });
        match alike {
            Some(other) => other.state.lock().entry.about.extend(&state.entry.about),
            None => {
                drop(state);
                others.push(self);
            }
        }
    }

    /// What came of it.
    pub(crate) fn ended(&self, outcome: Outcome, code: impl Into<String>) {
        let entry = &mut self.state.lock().entry;
        (entry.outcome, entry.code) = (outcome, code.into());
    }

    /// As [`Self::ended`], in gRPC's words.
    pub(crate) fn ended_with(&self, code: Code) {
        let outcome = match code {
            Code::Ok => Outcome::Done,
            Code::Internal | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded | Code::DataLoss => {
                Outcome::Failed
            }
            _ => Outcome::Refused,
        };
        self.ended(outcome, format!("{code:?}"));
    }

    /// As [`Self::ended`], in HTTP's words.
    pub(crate) fn ended_with_status(&self, status: axum::http::StatusCode) {
        let outcome = match status.as_u16() {
            ..400 => Outcome::Done,
            400..500 => Outcome::Refused,
            _ => Outcome::Failed,
        };
        self.ended(outcome, status.as_str());
    }

    /// Keys are about to be used.
    ///
    /// # Errors
    /// As [`Self::begin`].
    fn uses(&self, admitted: bool, how: Use, key: &[u8], range_end: &[u8]) -> Result<(), Full> {
        if !self.audit.has_chosen_keys(how, key, range_end) {
            return Ok(());
        }
        let text = range(key, range_end);
        if self.goes_on {
            let place = self.audit.trail.place()?;
            let mut entry = self.state.lock().entry.clone();
            entry.about.push(how.word(), &text);
            if admitted {
                entry.outcome = Outcome::Admitted;
                self.audit.trail.record(place, entry);
            } else {
                entry.outcome = Outcome::Refused;
                self.audit.trail.record_refused(place, entry);
            }
            return Ok(());
        }
        self.worth()?;
        self.about(how.word(), &text);
        Ok(())
    }

    /// It is worth a record.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub(crate) fn worth(&self) -> Result<(), Full> {
        let mut state = self.state.lock();
        if state.place.is_none() {
            state.place = Some(self.audit.trail.place()?);
        }
        Ok(())
    }
}

impl Drop for Act {
    fn drop(&mut self) {
        let State { entry, place } = self.state.get_mut();
        let Some(place) = place.take() else { return };
        entry.revision = Some(self.engine.latest().progress().revision.0);
        // Of whom it is not known who asks, nothing was done, whenever they left.
        let nobody = entry.outcome == Outcome::Unknown && entry.who.user.is_empty() && self.engine.auth_on();
        if nobody || entry.outcome == Outcome::Refused {
            self.audit.trail.record_refused(place, entry.clone());
        } else {
            self.audit.trail.record(place, entry.clone());
        }
    }
}

/// Keys as people read them.
pub(crate) fn range(key: &[u8], range_end: &[u8]) -> String {
    match range_end {
        b"" => key.escape_ascii().to_string(),
        b"\0" => format!("[{}..]", key.escape_ascii()),
        end => format!("[{}..{}]", key.escape_ascii(), end.escape_ascii()),
    }
}

/// The present task's act, if there is one.
pub(crate) fn present() -> Option<Arc<Act>> {
    ACT.try_with(Arc::clone).ok()
}

/// `work` as a part of the present task's act, for a task of its own.
pub(crate) fn carried<W: Future>(work: W) -> impl Future<Output = W::Output> {
    let act = present();
    async move {
        match act {
            Some(act) => act.run(work).await,
            None => work.await,
        }
    }
}

/// Says to what the present task's act is done. Never a secret, nor a value.
pub(crate) fn about(name: &'static str, value: impl Display) {
    // An error: it is no part of one.
    let _ = ACT.try_with(|act| act.about(name, &value.to_string()));
}

/// Keys are about to be used, or it was just said that they must not be.
///
/// # Errors
/// Their use must be recorded and cannot be.
pub(crate) fn uses(admitted: bool, how: Use, key: &[u8], range_end: &[u8]) -> Result<(), Error> {
    Ok(ACT.try_with(|act| act.uses(admitted, how, key, range_end)).unwrap_or(Ok(()))?)
}

/// As [`uses`], for all keys of an operation.
///
/// # Errors
/// As [`uses`].
pub(crate) fn uses_of(admitted: bool, operation: &Operation) -> Result<(), Error> {
    let Ok(act) = ACT.try_with(Arc::clone) else { return Ok(()) };
    if act.audit.keys.is_empty() {
        return Ok(());
    }
    match operation {
        Operation::Put(put) => act.uses(admitted, Use::Writes, &put.key, b""),
        Operation::Delete(delete) => act.uses(admitted, Use::Writes, &delete.key, &delete.range_end),
        Operation::Increment(increment) => act.uses(admitted, Use::Writes, &increment.key, b""),
        Operation::WriteFields(write) => of_fields(&act, admitted, write),
        Operation::Txn(txn) => of_txn(&act, admitted, txn),
        Operation::LeaseGrant(_) | Operation::LeaseRevoke(_) | Operation::LeaseKeepAlive(_) => Ok(()),
    }
    .map_err(Error::from)
}

/// As [`uses_of`], for a transaction.
///
/// # Errors
/// As [`uses`].
pub(crate) fn uses_of_txn(admitted: bool, txn: &Txn) -> Result<(), Error> {
    Ok(ACT.try_with(|act| of_txn(act, admitted, txn)).unwrap_or(Ok(()))?)
}

fn of_txn(act: &Act, admitted: bool, txn: &Txn) -> Result<(), Full> {
    for compare in &txn.compare {
        act.uses(admitted, Use::Reads, &compare.key, &compare.range_end)?;
    }
    for operation in txn.success.iter().chain(&txn.failure) {
        match &operation.step {
            None => {}
            Some(Step::Range(range)) => act.uses(admitted, Use::Reads, &range.key, &range.range_end)?,
            Some(Step::Put(put)) => act.uses(admitted, Use::Writes, &put.key, b"")?,
            Some(Step::Delete(delete)) => act.uses(admitted, Use::Writes, &delete.key, &delete.range_end)?,
            Some(Step::Txn(txn)) => of_txn(act, admitted, txn)?,
            Some(Step::WriteFields(write)) => of_fields(act, admitted, write)?,
            Some(Step::Publish(message)) => act.uses(admitted, Use::Writes, &message.channel, b"")?,
        }
    }
    Ok(())
}

fn of_fields(act: &Act, admitted: bool, write: &quoin_core::kv::WriteFields) -> Result<(), Full> {
    act.uses(admitted, Use::Writes, &write.key, b"")?;
    if write.from.is_empty() { Ok(()) } else { act.uses(admitted, Use::Writes, &write.from, b"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_keys_are_met_by_ranges_that_have_one_of_them() {
        let chosen = ChosenKeys { prefix: "app/".into(), reads: true, writes: true };
        for (key, end, meets) in [
            ("app/", "", true),
            ("app/x", "", true),
            ("app", "", false),
            ("app0", "", false),
            ("a", "b", true),
            ("a", "app/", false),
            ("a", "app/\0", true),
            ("app/x", "app/y", true),
            ("app0", "b", false),
            ("a", "\0", true),
            ("b", "\0", false),
            ("\0", "\0", true),
        ] {
            assert_eq!(chosen.meet(key.as_bytes(), end.as_bytes()), meets, "{key:?} {end:?}");
        }
        let all = ChosenKeys { prefix: Bytes::new(), reads: true, writes: false };
        assert!(all.meet(b"x", b"") && all.meet(b"", b"") && all.meet(b"x", b"y"));
    }
}
