//! Commands of the ledger face in golden scripts, see [`crate::golden`].
//!
//! ```text
//! currency CODE SCALE
//! account ID CURRENCY [number=N] [limit=N|unlimited] [max=N] [data=TEXT] [meta=NAME:VALUE] [opening=N] [pending]
//! chain ACCOUNT; ACCOUNT; ...    one command; ACCOUNT is as above without its first word, [linked]
//! update ID [status=N] [limit=N|unlimited] [max=N|none] [data=TEXT] [since=REVISION]
//! do TRANSFER; TRANSFER; ...     one command; TRANSFER is one of
//!     single ID DEBIT CREDIT AMOUNT    pending ID DEBIT CREDIT AMOUNT [timeout=MS]
//!     post ID PENDING [AMOUNT]         void ID PENDING    revert ID TRANSFER
//!     each with [linked] [currency=CODE] [code=N] [ref=TEXT] [balancing=debit|credit|both] [closing=debit|credit|both]
//!         [client=MS] [settle=MS] [imported]
//! try MS TRANSFER; TRANSFER; ...    as do, in a dry run, so many milliseconds from now      try-keyed KEY FINGERPRINT TRANSFER; ...
//! fenced STREAM NUMBER AFTER TRANSFER; TRANSFER; ...
//! keyed KEY FINGERPRINT TRANSFER; TRANSFER; ...   keyed-account KEY FINGERPRINT ID CURRENCY
//! indexes [on=NUMBER,NUMBER,...] [unique]
//! show ID [at=REVISION]   accounts [after=ID] [limit=N] [at=REVISION]   number NUMBER   transfer ID
//! statement ID [before=REVISION.POSITION] [since=REVISION] [limit=N]   journal FROM   revision-at STAMP
//! ```
//! Ids are small numbers, or `@CODE` for the world's account of a currency.

#![allow(clippy::unwrap_used, reason = "test code, which other crates' tests run too")]

use super::journal::decode_journal;
use super::*;
use crate::golden::{Line, Vocabulary, World, number};
use crate::store::Order;
use crate::{Event, Revision, Stamp};
use std::fmt::Write;

pub(crate) const VOCABULARY: Vocabulary = Vocabulary { face: "ledger", run, show_event };

fn run(world: &mut World<'_>, line: &Line<'_>) -> bool {
    let Line { name: command, rest, words } = line;
    match *command {
        "currency" => {
            let new = NewCurrency { code: words[0].into(), scale: line.number(1) };
            let Response::Currency(result) = apply(world, Operation::CreateCurrency(new).into_command())
            else {
                panic!("a currency")
            };
            world.say(result.map_or_else(|code| format!("refused: {code}"), |()| "done".into()));
        }
        "account" => create(world, vec![new_account(line)]),
        "chain" => {
            let accounts = rest.split(';').map(|text| format!("account {}", text.trim()));
            create(world, accounts.map(|text| new_account(&Line::parse(&text))).collect());
        }
        "update" => update(world, line),
        "do" => transfers(world, rest, Transfers::new(true)),
        "try" => {
            let (ms, text) = rest.split_once(' ').unwrap();
            attempt(world, number(ms), text, Transfers::new(true));
        }
        "try-keyed" => {
            let mut command = Transfers::new(true);
            command.set_key(Key { id: id(words[0]), fingerprint: line.number(1) });
            attempt(world, 0, rest.splitn(3, ' ').nth(2).unwrap(), command);
        }
        "fenced" => {
            let mut command = Transfers::new(true);
            command.set_fence(Fence { stream: id(words[0]), number: line.number(1), after: line.number(2) });
            transfers(world, rest.splitn(4, ' ').nth(3).unwrap(), command);
        }
        "keyed" => {
            let mut command = Transfers::new(true);
            command.set_key(Key { id: id(words[0]), fingerprint: line.number(1) });
            transfers(world, rest.splitn(3, ' ').nth(2).unwrap(), command);
        }
        "keyed-account" => {
            let key = Key { id: id(words[0]), fingerprint: line.number(1) };
            let new = NewAccount { currency: words[3].into(), ..NewAccount::default() }.with_id(id(words[2]));
            match apply(world, Operation::create_accounts_keyed(vec![new], key).into_command()) {
                Response::Accounts(results, _) => {
                    results.into_iter().for_each(|result| show_account(world, result));
                }
                other => world.say(format!("{other:?}")),
            }
        }
        "show" => {
            let at = line.option("at").map_or(u64::MAX, number);
            let found = account_at(world.view(), id(words[0]), Revision(at)).unwrap();
            world.say(found.map_or("no such account".into(), |account| {
                let Account { record, balances, balance_revision, closed } = &account;
                let closed = if *closed { ", closed by a transfer" } else { "" };
                format!("{}; {} at {balance_revision}{closed}", account_text(record), balances_text(balances))
            }));
        }
        "accounts" => {
            let (after, limit) = (line.option("after").map(id), line.option("limit").map_or(100, number));
            let at = Revision(line.option("at").map_or(u64::MAX, number));
            let after = after.map(u128::to_be_bytes);
            let after = after.as_ref().map(|after| &after[..]);
            let all = AccountFilter::default();
            let page = find_accounts(world.view(), &all, at, after, limit, ACCOUNTS_EXAMINED_MAX).unwrap();
            for Account { record, balances, .. } in &page.accounts {
                world.say(format!("{}; {}", account_text(record), balances_text(balances)));
            }
            world.say(if page.next.is_some() { "more" } else { "end" });
        }
        "indexes" => {
            let on = line.option("on").map_or(Vec::new(), |on| on.split(',').map(number).collect());
            let wanted = SetIndexes { on, unique_references: line.has("unique") };
            let response = apply(world, Operation::SetIndexes(wanted).into_command());
            world.say(format!("{response:?}"));
        }
        "number" => {
            let found = account_by_number(world.view(), words[0]).unwrap();
            world.say(found.map_or("no such number".into(), name));
        }
        "transfer" => match transfer(world.view(), id(words[0])).unwrap() {
            Some(TransferView { entry, state, reverted_by }) => {
                let by = reverted_by.map_or(String::new(), |by| format!(" by {by}"));
                world.say(format!(
                    "{}, {state:?}{}{by}",
                    entry_text(&entry),
                    if by.is_empty() { "" } else { ", reverted" }
                ));
            }
            None => world.say("no such transfer"),
        },
        "statement" => show_statement(world, line),
        "journal" => {
            let from = (Revision(line.number(0)), 0);
            let journal: Vec<_> = entries(world.view(), from).map(Result::unwrap).collect();
            journal.iter().for_each(|(_, _, part)| show_journal(world, part));
        }
        "revision-at" => {
            let found = revision_at(world.view(), &world.progress(), Stamp(line.number(0))).unwrap();
            world.say(found.to_string());
        }
        _ => return false,
    }
    true
}

fn apply(world: &mut World<'_>, command: crate::Command) -> Response {
    let before = world.progress().revision;
    let (reply, events) = world.apply(command);
    let crate::Reply::Ledger(reply) = reply else { panic!("a ledger command") };
    assert_eq!(reply.stamp, Stamp(world.stamp));
    assert_eq!(reply.revision, events.last().map_or(before, |event| event.revision));
    reply.response
}

fn new_account(line: &Line<'_>) -> NewAccount {
    let (rule, limit) = rule(line.option("limit"));
    let metadata = line.option("meta").and_then(|pair| pair.split_once(':'));
    let new = NewAccount {
        number: line.option("number").unwrap_or_default().into(),
        currency: line.words[1].into(),
        rule: rule.into(),
        user_data: line.option("data").unwrap_or_default().into(),
        metadata: metadata.map(|(key, value)| (key.into(), value.into())).into_iter().collect(),
        maximum: line.option("max").map(|most| number::<u128>(most).into()),
        linked: line.has("linked"),
        opening: line.option("opening").map(|amount| number::<u128>(amount).into()),
        status: if line.has("pending") { Status::Pending } else { Status::Active }.into(),
        ..NewAccount::default()
    };
    new.with_id(id(line.words[0])).with_limit(limit)
}

fn create(world: &mut World<'_>, accounts: Vec<NewAccount>) {
    let Response::Accounts(results, _) = apply(world, Operation::create_accounts(accounts).into_command())
    else {
        panic!("accounts")
    };
    results.into_iter().for_each(|result| show_account(world, result));
}

fn update(world: &mut World<'_>, line: &Line<'_>) {
    let mut update = UpdateAccount::of(id(line.words[0]));
    update.status = line.option("status").map(number);
    if let Some(limit) = line.option("limit") {
        let (rule, limit) = rule(Some(limit));
        update.rule = Some(rule.into());
        (update.limit_high, update.limit_low) = ((limit >> 64) as u64, limit as u64);
    }
    match line.option("max") {
        Some("none") => update.no_maximum = true,
        most => update.maximum = most.map(|most| number::<u128>(most).into()),
    }
    update.user_data = line.option("data").map(Into::into);
    update.unchanged_since = line.option("since").map_or(0, number);
    let Response::Account(result) = apply(world, Operation::UpdateAccount(update).into_command()) else {
        panic!("an account")
    };
    show_account(world, result.map(|account| *account));
}

fn show_account(world: &mut World<'_>, result: Result<AccountRecord, AccountCode>) {
    world.say(result.map_or_else(|code| format!("refused: {code}"), |account| account_text(&account)));
}

fn transfers(world: &mut World<'_>, text: &str, command: Transfers) {
    let response = apply(world, with_transfers(command, text).into_command());
    show_replies(world, response);
}

/// A dry run, and then nothing has changed.
fn attempt(world: &mut World<'_>, ms: u64, text: &str, command: Transfers) {
    let before: Vec<_> = world.view().scan(&[], &[], Order::Ascending).map(Result::unwrap).collect();
    let (progress, now) = (world.progress(), Stamp(world.stamp + ms));
    let response = dry_run(world.view(), &progress, now, with_transfers(command, text)).unwrap();
    let after = world.view().scan(&[], &[], Order::Ascending).map(Result::unwrap);
    assert!(after.eq(before) && world.progress() == progress, "a dry run has changed something");
    show_replies(world, response);
}

fn with_transfers(mut command: Transfers, text: &str) -> Transfers {
    for text in text.split(';') {
        command.push(&parse_transfer(&Line::parse(text.trim())));
    }
    command
}

fn show_replies(world: &mut World<'_>, response: Response) {
    let replies = match response {
        Response::Transfers(replies) => replies,
        other => return world.say(format!("{other:?}")),
    };
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
        world.say(text);
    }
}

fn show_statement(world: &mut World<'_>, line: &Line<'_>) {
    let before = line.option("before").and_then(|place| place.split_once('.'));
    let before = before.map(|(revision, position)| (Revision(number(revision)), number(position)));
    let since = Revision(line.option("since").map_or(0, number));
    let limit = line.option("limit").map_or(100, number);
    let page = statement(world.view(), id(line.words[0]), before, since, limit).unwrap();
    for line in &page.items {
        world.say(format!("{}; {}", entry_text(&line.entry), balances_text(&line.balances)));
    }
    world.say(if page.more { "more" } else { "end" });
}

fn show_event(world: &mut World<'_>, event: &Event) {
    for change in &event.changes {
        let part = change.value.as_ref().expect("nothing leaves the journal");
        show_journal(world, &decode_journal(&change.key, part).unwrap());
    }
}

fn show_journal(world: &mut World<'_>, part: &Journal) {
    match part {
        Journal::Transfers(entries) => entries.iter().for_each(|entry| world.say(entry_text(entry))),
        Journal::Accounts(revision, _, accounts) => {
            for account in accounts {
                world.say(format!("{revision} {}", account_text(account)));
            }
        }
        Journal::Currency(revision, _, currency, scale) => {
            world.say(format!("{revision} currency {currency} scale {scale}"));
        }
    }
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

fn rule(limit: Option<&str>) -> (Rule, u128) {
    match limit {
        None => (Rule::NoOverdraft, 0),
        Some("unlimited") => (Rule::Unlimited, 0),
        Some(limit) => (Rule::Limit, number(limit)),
    }
}

fn parse_transfer<'a>(line: &Line<'a>) -> Transfer<'a> {
    let words = &line.words;
    let kind = match line.name {
        "single" => Kind::Single { debit: id(words[1]), credit: id(words[2]), amount: line.number(3) },
        "pending" => Kind::Pending {
            debit: id(words[1]),
            credit: id(words[2]),
            amount: line.number(3),
            timeout_ms: line.option("timeout").map_or(0, number),
        },
        "post" => {
            Kind::Post { pending: id(words[1]), amount: words.get(2).and_then(|amount| amount.parse().ok()) }
        }
        "void" => Kind::Void { pending: id(words[1]) },
        "revert" => Kind::Revert { reverted: id(words[1]) },
        other => panic!("unknown transfer {other:?}"),
    };
    let balancing = line.option("balancing").unwrap_or_default();
    let closing = line.option("closing").unwrap_or_default();
    Transfer {
        options: Options {
            balancing_debit: matches!(balancing, "debit" | "both"),
            balancing_credit: matches!(balancing, "credit" | "both"),
            closing_debit: matches!(closing, "debit" | "both"),
            closing_credit: matches!(closing, "credit" | "both"),
        },
        times: Times {
            client_ms: line.option("client").map_or(0, number),
            settle_ms: line.option("settle").map_or(0, number),
            imported: line.has("imported"),
        },
        linked: line.has("linked"),
        currency: line.option("currency").map(|code| code.parse().unwrap()),
        code: line.option("code").map_or(0, number),
        reference: line.option("ref").unwrap_or_default(),
        ..Transfer::new(id(words[0]), kind)
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
    if let Some(maximum) = record.maximum() {
        write!(text, " maximum {maximum}").unwrap();
    }
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
        Kind::Revert { reverted } => format!("revert {reverted}"),
        Kind::Expired { pending } => format!("expired {pending}"),
    };
    let moved = entry
        .effect()
        .map_or(String::new(), |effect| format!(" moved {} freed {}", effect.amount, effect.pending_amount));
    let Entry { revision, position, code, .. } = entry;
    let Times { client_ms, settle_ms, imported } = transfer.times;
    let times = match (client_ms, settle_ms) {
        (0, 0) => String::new(),
        _ => format!(" client {client_ms} settle {settle_ms}{}", if imported { " imported" } else { "" }),
    };
    format!("{revision}.{position} {} {what}: {}{moved}{times}", transfer.id, code.name())
}
