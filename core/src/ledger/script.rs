//! Golden scripts of the ledger face: `testscripts/*.txt` hold commands, each after `> `, and below each what it
//! answers. `UPDATE_GOLDEN=1 cargo test -p quoin-core` writes the answers anew; read the difference before you keep it.
//!
//! ```text
//! currency CODE SCALE
//! account ID CURRENCY [number=N] [limit=N|unlimited] [data=TEXT] [meta=NAME:VALUE]
//! update ID [status=N] [limit=N|unlimited] [data=TEXT] [since=REVISION]
//! do TRANSFER; TRANSFER; ...     one command; TRANSFER is one of
//!     single ID DEBIT CREDIT AMOUNT    pending ID DEBIT CREDIT AMOUNT [timeout=MS]    post ID PENDING [AMOUNT]
//!     void ID PENDING                  each with [linked] [currency=CODE] [code=N] [ref=TEXT]
//! show ID [at=REVISION]   accounts [after=ID] [limit=N]   number NUMBER   transfer ID
//! statement ID [before=REVISION.POSITION] [since=REVISION] [limit=N]   journal FROM   revision-at STAMP
//! time MS (moves the stamp, and lets a leader tick)   compact REVISION
//! ```
//! Ids are small numbers, or `@CODE` for the world's account of a currency.

use super::*;
use crate::store::MemoryStore;
use crate::{Batch, Event, Index, Machines, Revision, Stamp, Store, Term, View, system};
use std::fmt::Write;

struct World<'a> {
    store: &'a dyn Store,
    machines: Machines,
    stamp: u64,
    out: String,
}

fn id(word: &str) -> u128 {
    match word.strip_prefix('@') {
        Some(code) => world_account(code.parse().unwrap()).0,
        None => word.parse().unwrap_or_else(|_| panic!("{word:?} is no id")),
    }
}

fn name(id: u128) -> String {
    let bytes = id.to_be_bytes();
    match bytes.strip_prefix(b"@world/") {
        Some(code) => format!("@{}", String::from_utf8_lossy(code).trim_end_matches('\0')),
        None => id.to_string(),
    }
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number"))
}

fn option<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value))
}

fn rule(limit: Option<&str>) -> (Rule, u128) {
    match limit {
        None => (Rule::NoOverdraft, 0),
        Some("unlimited") => (Rule::Unlimited, 0),
        Some(limit) => (Rule::Limit, number(limit)),
    }
}

fn transfer_of<'a>(words: &[&'a str]) -> Transfer<'a> {
    let kind = match words[0] {
        "single" => Kind::Single { debit: id(words[2]), credit: id(words[3]), amount: number(words[4]) },
        "pending" => Kind::Pending {
            debit: id(words[2]),
            credit: id(words[3]),
            amount: number(words[4]),
            timeout_ms: option(words, "timeout").map_or(0, number),
        },
        "post" => {
            Kind::Post { pending: id(words[2]), amount: words.get(3).and_then(|amount| amount.parse().ok()) }
        }
        "void" => Kind::Void { pending: id(words[2]) },
        other => panic!("unknown transfer {other:?}"),
    };
    Transfer {
        linked: words.contains(&"linked"),
        currency: option(words, "currency").map(|code| code.parse().unwrap()),
        code: option(words, "code").map_or(0, number),
        reference: option(words, "ref").unwrap_or_default(),
        ..Transfer::new(id(words[1]), kind)
    }
}

fn balances_text(balances: &Balances) -> String {
    let Balances { debits_posted, credits_posted, debits_pending, credits_pending } = balances;
    let mut text = format!("balance {}", format_signed(*credits_posted, *debits_posted, 0));
    write!(text, " (debits {debits_posted} credits {credits_posted}").unwrap();
    if debits_pending + credits_pending > 0 {
        write!(text, " pending {debits_pending}/{credits_pending}").unwrap();
    }
    text + ")"
}

fn account_text(record: &AccountRecord) -> String {
    let mut text = format!("account {} {}", name(record.id()), record.currency());
    if !record.origin.number.is_empty() {
        write!(text, " {:?}", record.origin.number).unwrap();
    }
    let allowance = record.allowance().map_or("unlimited".into(), |limit| limit.to_string());
    write!(text, " limit {allowance} {:?}", record.status()).unwrap();
    let present = record.present();
    if !present.user_data.is_empty() {
        write!(text, " data {:?}", present.user_data).unwrap();
    }
    for (key, value) in present.metadata {
        write!(text, " {key}={value}").unwrap();
    }
    write!(text, " created {} changed {}", record.created_revision, record.changed_revision).unwrap();
    text
}

fn entry_text(entry: &Entry) -> String {
    let transfer = entry.transfer();
    let what = match transfer.kind {
        Kind::Single { debit, credit, amount } => {
            format!("single {} -> {} {amount}", name(debit), name(credit))
        }
        Kind::Pending { debit, credit, amount, timeout_ms } => {
            format!("pending {} -> {} {amount} timeout {timeout_ms}", name(debit), name(credit))
        }
        Kind::Post { pending, .. } => format!("post {pending}"),
        Kind::Void { pending } => format!("void {pending}"),
        Kind::Expired { pending } => format!("expired {pending}"),
    };
    let moved = entry
        .effect()
        .map_or(String::new(), |effect| format!(" moved {} freed {}", effect.amount, effect.pending_amount));
    let Entry { revision, position, code, .. } = entry;
    format!("{revision}.{position} {} {what}: {}{moved}", transfer.id, code.name())
}

impl World<'_> {
    fn view(&self) -> View<'_> {
        View::new(self.store, self.machines.progress().sequence)
    }

    fn apply(&mut self, command: crate::Command) -> (crate::Reply, Vec<Event>) {
        let index = Index(self.machines.progress().index.0 + 1);
        let payload = Batch::encode(Stamp(self.stamp), &[command]);
        let outcome = self.machines.apply(self.store, index, Term(1), payload).unwrap();
        (outcome.replies.into_iter().next().unwrap(), outcome.events)
    }

    fn ledger(&mut self, command: crate::Command) -> Response {
        let before = self.machines.progress().revision;
        let (reply, events) = self.apply(command);
        let crate::Reply::Ledger(reply) = reply else { panic!("a ledger command") };
        assert_eq!(reply.stamp, Stamp(self.stamp));
        assert_eq!(reply.revision, events.last().map_or(before, |event| event.revision));
        reply.response
    }

    fn say(&mut self, text: impl AsRef<str>) {
        writeln!(self.out, "{}", text.as_ref()).unwrap();
    }

    fn run(&mut self, line: &str) {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        match command {
            "currency" => {
                let new = NewCurrency { code: words[0].into(), scale: number(words[1]) };
                let Response::Currency(result) = self.ledger(Operation::CreateCurrency(new).into_command())
                else {
                    panic!("a currency")
                };
                self.say(result.map_or_else(|code| format!("refused: {code}"), |()| "done".into()));
            }
            "account" => self.account(&words),
            "update" => self.update(&words),
            "do" => self.transfers(rest),
            "show" => {
                let at = option(&words, "at").map_or(u64::MAX, number);
                match account_at(self.view(), id(words[0]), Revision(at)).unwrap() {
                    Some(account) => {
                        let balances = balances_text(&account.balances);
                        self.say(format!(
                            "{}; {balances} at {}",
                            account_text(&account.record),
                            account.balance_revision
                        ));
                    }
                    None => self.say("no such account"),
                }
            }
            "accounts" => {
                let limit = option(&words, "limit").map_or(100, number);
                let page = accounts(self.view(), option(&words, "after").map(id), Revision(u64::MAX), limit)
                    .unwrap();
                for account in &page.items {
                    self.say(format!(
                        "{}; {}",
                        account_text(&account.record),
                        balances_text(&account.balances)
                    ));
                }
                self.say(if page.more { "more" } else { "end" });
            }
            "number" => {
                let found = account_by_number(self.view(), words[0]).unwrap();
                self.say(found.map_or("no such number".into(), name));
            }
            "transfer" => match transfer(self.view(), id(words[0])).unwrap() {
                Some(TransferView { entry, state }) => self.say(format!("{}, {state:?}", entry_text(&entry))),
                None => self.say("no such transfer"),
            },
            "statement" => self.statement(&words),
            "journal" => {
                let journal: Vec<_> =
                    entries(self.view(), (Revision(number(words[0])), 0)).map(Result::unwrap).collect();
                for (_, _, part) in journal {
                    self.show_journal(&part);
                }
            }
            "revision-at" => {
                let found =
                    revision_at(self.view(), &self.machines.progress(), Stamp(number(words[0]))).unwrap();
                self.say(found.to_string());
            }
            "time" => {
                self.stamp += number::<u64>(words[0]);
                while self.machines.next_deadline().is_some_and(|deadline| deadline.0 <= self.stamp) {
                    let (_, events) = self.apply(system::Operation::Tick(true).into_command());
                    for change in events.iter().flat_map(|event| &event.changes) {
                        let part = decode_journal(&change.key, change.value.as_ref().unwrap()).unwrap();
                        self.show_journal(&part);
                    }
                }
            }
            "compact" => {
                let command = system::Operation::Compact(number(words[0])).into_command();
                let (reply, _) = self.apply(command);
                self.say(format!("{reply:?}"));
            }
            other => panic!("unknown command {other:?}"),
        }
    }

    fn account(&mut self, words: &[&str]) {
        let (rule, limit) = rule(option(words, "limit"));
        let metadata = option(words, "meta").and_then(|pair| pair.split_once(':'));
        let new = NewAccount {
            number: option(words, "number").unwrap_or_default().into(),
            currency: words[1].into(),
            rule: rule.into(),
            user_data: option(words, "data").unwrap_or_default().into(),
            metadata: metadata.map(|(key, value)| (key.into(), value.into())).into_iter().collect(),
            ..NewAccount::default()
        };
        let new = new.with_id(id(words[0])).with_limit(limit);
        let Response::Accounts(results) = self.ledger(Operation::create_accounts(vec![new]).into_command())
        else {
            panic!("accounts")
        };
        for result in results {
            self.show_account(result);
        }
    }

    fn update(&mut self, words: &[&str]) {
        let mut update = UpdateAccount::of(id(words[0]));
        update.status = option(words, "status").map(number);
        if let Some(limit) = option(words, "limit") {
            let (rule, limit) = rule(Some(limit));
            update.rule = Some(rule.into());
            (update.limit_high, update.limit_low) = ((limit >> 64) as u64, limit as u64);
        }
        update.user_data = option(words, "data").map(Into::into);
        update.unchanged_since = option(words, "since").map_or(0, number);
        let Response::Account(result) = self.ledger(Operation::UpdateAccount(update).into_command()) else {
            panic!("an account")
        };
        self.show_account(result.map(|account| *account));
    }

    fn show_account(&mut self, result: Result<AccountRecord, AccountCode>) {
        self.say(result.map_or_else(|code| format!("refused: {code}"), |account| account_text(&account)));
    }

    fn transfers(&mut self, rest: &str) {
        let mut command = Transfers::new(true);
        for words in rest.split(';').map(|text| text.split_whitespace().collect::<Vec<_>>()) {
            command.push(&transfer_of(&words));
        }
        let Response::Transfers(replies) = self.ledger(command.into_command()) else { panic!("transfers") };
        for reply in replies {
            let TransferReply { code, duplicate, revision, position, detail, .. } = reply;
            let mut text = format!("{}{}", if duplicate { "again " } else { "" }, code.name());
            if code != Code::IdConflict {
                write!(text, " {revision}.{position}").unwrap();
            }
            if let Some(detail) = detail {
                let Resolution { debit, credit, .. } = detail.resolution;
                let (from, to) = (balances_text(&detail.debit), balances_text(&detail.credit));
                write!(text, "; {} {from}; {} {to}", name(debit), name(credit)).unwrap();
            }
            self.say(text);
        }
    }

    fn statement(&mut self, words: &[&str]) {
        let before = option(words, "before").and_then(|place| place.split_once('.'));
        let before = before.map(|(revision, position)| (Revision(number(revision)), number(position)));
        let since = Revision(option(words, "since").map_or(0, number));
        let limit = option(words, "limit").map_or(100, number);
        let page = statement(self.view(), id(words[0]), before, since, limit).unwrap();
        for line in &page.items {
            self.say(format!("{}; {}", entry_text(&line.entry), balances_text(&line.balances)));
        }
        self.say(if page.more { "more" } else { "end" });
    }

    fn show_journal(&mut self, part: &Journal) {
        match part {
            Journal::Transfers(entries) => entries.iter().for_each(|entry| self.say(entry_text(entry))),
            Journal::Accounts(revision, _, accounts) => {
                for account in accounts {
                    self.say(format!("{revision} {}", account_text(account)));
                }
            }
            Journal::Currency(revision, _, currency, scale) => {
                self.say(format!("{revision} currency {currency} scale {scale}"));
            }
        }
    }
}

fn replay(script: &str) -> String {
    let store = MemoryStore::new();
    let machines = Machines::open(&store).unwrap();
    let mut world = World { store: &store, machines, stamp: 1000, out: String::new() };
    for line in crate::golden::kept_lines(script) {
        world.say(line);
        if let Some(command) = line.strip_prefix("> ") {
            world.run(command);
            // What the machine remembers besides the store must not matter: every command meets a fresh one.
            world.machines = Machines::open(&store).unwrap();
        }
    }
    world.out
}

#[test]
fn scripts_answer_as_recorded() {
    crate::golden::check("ledger", 5, replay);
}
