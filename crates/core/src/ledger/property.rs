//! Random transfers, imports, chains of accounts with initial balances, retries, duplicates, timeouts and replays against a
//! plain model.
//!
//! The model keeps balances and answers in maps; it has no store, no cache and no journal.

use super::query::histories;
use super::*;
use crate::store::MemoryStore;
use crate::store::contract::Random;
use crate::{Batch, Index, Machines, Revision, Stamp, Term, View};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};

const ACCOUNTS: u128 = 6;
/// Accounts with ids from here on are created in chains.
const FURTHER_FROM: u128 = 100;

/// A transfer that can be sent again.
#[derive(Clone, Debug)]
struct Wish {
    id: u128,
    kind: Kind,
    linked: bool,
    options: Options,
    /// When it happened in the book that it is imported from.
    imported_ms: Option<u64>,
}

impl Wish {
    fn transfer(&self) -> Transfer<'static> {
        let options = self.options;
        let imported = |client_ms| Times { client_ms, settle_ms: 0, imported: true };
        let times = self.imported_ms.map_or_else(Times::default, imported);
        let transfer = Transfer { linked: self.linked, options, times, ..Transfer::new(self.id, self.kind) };
        super::searched::label(transfer)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    debit: u128,
    credit: u128,
    amount: u128,
    deadline: u64,
    state: PendingState,
    options: Options,
}

impl Held {
    fn closing(&self) -> impl Iterator<Item = u128> {
        let Self { debit, credit, options, .. } = *self;
        [(debit, options.closing_debit), (credit, options.closing_credit)]
            .into_iter()
            .filter_map(|(account, closing)| closing.then_some(account))
    }
}

#[derive(Clone, Default)]
struct Model {
    balances: BTreeMap<u128, Balances>,
    held: BTreeMap<u128, Held>,
    /// Each id's transfer and answer.
    answers: HashMap<u128, (Transfer<'static>, Code)>,
    frozen: Option<u128>,
    /// What singles and posts moved: from, to, amount.
    moved: BTreeMap<u128, (u128, u128, u128)>,
    reverted: BTreeSet<u128>,
    /// Accounts that a pending transfer has closed.
    closed: BTreeSet<u128>,
    /// The newest client time of what was imported.
    imported_ms: u64,
    /// Accounts that were created in chains.
    further: BTreeMap<u128, NewAccount>,
}

/// Its account is where a currency's money comes from.
fn source(parity: u128) -> u128 {
    let currency = if parity == 0 { "EUR" } else { "USD" };
    world_account(currency.parse().unwrap()).0
}

impl Model {
    fn currency(account: u128) -> u128 {
        match account {
            account if account == source(0) => 0,
            account if account == source(1) => 1,
            account if account > ACCOUNTS && account < FURTHER_FROM => account,
            account => account % 2,
        }
    }

    fn is_unlimited(account: u128) -> bool {
        account <= 2 || [source(0), source(1)].contains(&account)
    }

    fn limit(account: u128) -> u128 {
        if account == 3 { 40 } else { 0 }
    }

    fn maximum(account: u128) -> Option<u128> {
        let small = (FURTHER_FROM..FURTHER_FROM + 1000).contains(&account) && account.is_multiple_of(3);
        if small { Some(60) } else { (account == 5).then_some(35) }
    }

    /// Creates accounts together, or none of them: what each is answered.
    fn chain(&mut self, chain: &[NewAccount]) -> Vec<Result<(), AccountCode>> {
        let mut attempt = self.clone();
        match attempt.create(chain) {
            Ok(()) => {
                *self = attempt;
                vec![Ok(()); chain.len()]
            }
            Err((place, code)) => {
                let answer = |other| Err(if other == place { code } else { AccountCode::LinkedFailed });
                (0..chain.len()).map(answer).collect()
            }
        }
    }

    fn create(&mut self, chain: &[NewAccount]) -> Result<(), (usize, AccountCode)> {
        let mut opened = Vec::new();
        for (place, new) in chain.iter().enumerate() {
            if let Some(known) = self.further.get(&new.id()) {
                if known != new {
                    return Err((place, AccountCode::IdConflict));
                }
                continue;
            }
            if self.further.values().any(|other| other.number == new.number) {
                return Err((place, AccountCode::NumberTaken));
            }
            self.further.insert(new.id(), new.clone());
            self.balances.insert(new.id(), Balances::default());
            opened.extend(new.opening.map(|amount| (place, new.id(), u128::from(amount))));
        }
        for (place, id, amount) in opened {
            let debit = source(Self::currency(id));
            self.movement(debit, id, amount, Options::default(), false)
                .map_err(|code| (place, AccountCode::OpeningRefused(code)))?;
            self.moved.insert(id, (debit, id, amount));
            let transfer = Transfer::new(id, Kind::Single { debit, credit: id, amount });
            self.answers.insert(id, (transfer, Code::Ok));
        }
        Ok(())
    }

    fn expire(&mut self, stamp: u64) {
        for (_, held) in self.held.iter_mut() {
            if held.state == PendingState::Open && held.deadline != 0 && held.deadline <= stamp {
                held.state = PendingState::Expired;
                for account in held.closing() {
                    self.closed.remove(&account);
                }
                self.balances.entry(held.debit).or_default().debits_pending -= held.amount;
                self.balances.entry(held.credit).or_default().credits_pending -= held.amount;
            }
        }
    }

    fn group(&mut self, group: &[Wish], stamp: u64) -> Vec<Code> {
        let known = group.iter().filter_map(|wish| self.answers.get(&wish.id)).count();
        let mut ids: Vec<u128> = group.iter().map(|wish| wish.id).collect();
        ids.sort_unstable();
        ids.dedup();
        if known > 0 || ids.len() < group.len() {
            let same = |wish: &Wish| {
                let answer = self.answers.get(&wish.id);
                answer.filter(|(first, _)| *first == wish.transfer()).map(|(_, code)| *code)
            };
            let codes: Option<Vec<Code>> = group.iter().map(same).collect();
            let codes = codes.filter(|_| ids.len() == group.len());
            return codes.unwrap_or_else(|| vec![Code::IdConflict; group.len()]);
        }
        let mut attempt = self.clone();
        let mut failed = None;
        for (place, wish) in group.iter().enumerate() {
            if let Err(code) = attempt.one(wish, stamp) {
                failed = Some((place, code));
                break;
            }
        }
        if failed.is_none() {
            *self = attempt;
        }
        let code = |place| match failed {
            None => Code::Ok,
            Some((failed, code)) if failed == place => code,
            Some(_) => Code::LinkedFailed,
        };
        let codes: Vec<Code> = (0..group.len()).map(code).collect();
        for (wish, code) in group.iter().zip(&codes) {
            self.answers.insert(wish.id, (wish.transfer(), *code));
        }
        codes
    }

    fn one(&mut self, wish: &Wish, stamp: u64) -> Result<(), Code> {
        if let Some(time) = wish.imported_ms {
            if time <= self.imported_ms || time >= stamp {
                return Err(Code::ImportedTime);
            }
            self.imported_ms = time;
        }
        match wish.kind {
            Kind::Single { debit, credit, amount } => {
                let amount = self.movement(debit, credit, amount, wish.options, false)?;
                self.moved.insert(wish.id, (debit, credit, amount));
                Ok(())
            }
            Kind::Pending { debit, credit, amount, timeout_ms } => {
                let amount = self.movement(debit, credit, amount, wish.options, true)?;
                let deadline = if timeout_ms == 0 { 0 } else { stamp + timeout_ms };
                let options = wish.options;
                let held = Held { debit, credit, amount, deadline, state: PendingState::Open, options };
                self.closed.extend(held.closing());
                self.held.insert(wish.id, held);
                Ok(())
            }
            Kind::Post { pending, amount } => self.resolve(wish.id, pending, PendingState::Posted, amount),
            Kind::Void { pending } => self.resolve(wish.id, pending, PendingState::Voided, None),
            Kind::Revert { reverted } => self.revert(reverted),
            Kind::Expired { .. } => unreachable!("never generated"),
        }
    }

    fn revert(&mut self, reverted: u128) -> Result<(), Code> {
        match self.answers.get(&reverted) {
            Some((_, Code::Ok)) => {}
            _ => return Err(Code::RevertedUnknown),
        }
        let Some((debit, credit, amount)) = self.moved.get(&reverted).copied() else {
            return Err(Code::NotRevertible);
        };
        if self.reverted.contains(&reverted) {
            return Err(Code::AlreadyReverted);
        }
        self.movement(credit, debit, amount, Options::default(), false)?;
        self.reverted.insert(reverted);
        Ok(())
    }

    /// The amount that a balancing transfer moves.
    fn balanced(&self, debit: u128, credit: u128, amount: u128, options: Options) -> Result<u128, Code> {
        let (giver, taker) = (self.balances[&debit], self.balances[&credit]);
        let mut amount = if amount == 0 { 1_000_000 } else { amount };
        let closing = options.is_closing();
        let room = giver.credits_posted + Self::limit(debit);
        let spent = giver.debits_posted + giver.debits_pending;
        if options.balancing_debit && !closing && room <= spent {
            return Err(Code::InsufficientFunds);
        }
        if options.balancing_debit {
            amount = amount.min(room.saturating_sub(spent));
        }
        let room = taker.debits_posted + Self::maximum(credit).unwrap_or(0);
        let taken = taker.credits_posted + taker.credits_pending;
        if options.balancing_credit && !closing && amount > 0 && room <= taken {
            return Err(Code::MaximumExceeded);
        }
        Ok(if options.balancing_credit { amount.min(room.saturating_sub(taken)) } else { amount })
    }

    fn movement(
        &mut self,
        debit: u128,
        credit: u128,
        amount: u128,
        options: Options,
        pending: bool,
    ) -> Result<u128, Code> {
        let balancing = options.balancing_debit || options.balancing_credit;
        if debit == credit {
            return Err(Code::SameAccount);
        }
        if amount == 0 && !balancing && !options.is_closing() {
            return Err(Code::ZeroAmount);
        }
        for (account, code) in [(debit, Code::DebitUnknown), (credit, Code::CreditUnknown)] {
            if !self.balances.contains_key(&account) {
                return Err(code);
            }
        }
        if Self::currency(debit) != Self::currency(credit) {
            return Err(Code::CurrencyMismatch);
        }
        for (account, code) in [(debit, Code::DebitClosed), (credit, Code::CreditClosed)] {
            if self.closed.contains(&account) {
                return Err(code);
            }
        }
        for (account, code) in [(debit, Code::DebitFrozen), (credit, Code::CreditFrozen)] {
            if self.frozen == Some(account) {
                return Err(code);
            }
        }
        let amount = if balancing { self.balanced(debit, credit, amount, options)? } else { amount };
        let giver = self.balances[&debit];
        let unlimited = Self::is_unlimited(debit);
        let spent = giver.debits_posted + giver.debits_pending + amount;
        if !unlimited && spent > giver.credits_posted + Self::limit(debit) {
            return Err(Code::InsufficientFunds);
        }
        let taker = self.balances[&credit];
        let taken = taker.credits_posted + taker.credits_pending + amount;
        if Self::maximum(credit).is_some_and(|most| taken > taker.debits_posted + most) {
            return Err(Code::MaximumExceeded);
        }
        let giver = self.balances.get_mut(&debit).unwrap();
        *(if pending { &mut giver.debits_pending } else { &mut giver.debits_posted }) += amount;
        let taker = self.balances.get_mut(&credit).unwrap();
        *(if pending { &mut taker.credits_pending } else { &mut taker.credits_posted }) += amount;
        Ok(amount)
    }

    fn resolve(&mut self, by: u128, id: u128, state: PendingState, amount: Option<u128>) -> Result<(), Code> {
        let Some(held) = self.held.get(&id).copied() else {
            let not_pending = self
                .answers
                .get(&id)
                .is_some_and(|(transfer, _)| !matches!(transfer.kind, Kind::Pending { .. }));
            return Err(if not_pending { Code::NotPending } else { Code::PendingUnknown });
        };
        match held.state {
            PendingState::Posted => return Err(Code::AlreadyPosted),
            PendingState::Voided => return Err(Code::AlreadyVoided),
            PendingState::Expired => return Err(Code::PendingExpired),
            PendingState::Open => {}
        }
        let posting = state == PendingState::Posted;
        let amount = if posting { amount.unwrap_or(held.amount) } else { 0 };
        if amount > held.amount {
            return Err(Code::ExceedsPending);
        }
        if posting && self.closed.contains(&held.debit) {
            return Err(Code::DebitClosed);
        }
        if posting && self.closed.contains(&held.credit) {
            return Err(Code::CreditClosed);
        }
        if posting && self.frozen == Some(held.debit) {
            return Err(Code::DebitFrozen);
        }
        if posting && self.frozen == Some(held.credit) {
            return Err(Code::CreditFrozen);
        }
        if posting {
            self.moved.insert(by, (held.debit, held.credit, amount));
        }
        for account in held.closing() {
            self.closed.remove(&account);
        }
        self.held.get_mut(&id).unwrap().state = state;
        let giver = self.balances.get_mut(&held.debit).unwrap();
        giver.debits_pending -= held.amount;
        giver.debits_posted += amount;
        let taker = self.balances.get_mut(&held.credit).unwrap();
        taker.credits_pending -= held.amount;
        taker.credits_posted += amount;
        Ok(())
    }
}

/// Accounts 1 and 2 are unlimited, so that there is something to give; the others are not.
fn new_account(id: u128) -> NewAccount {
    let currency = if id.is_multiple_of(2) { "EUR" } else { "USD" };
    let rule = match id {
        1 | 2 => Rule::Unlimited,
        3 => Rule::Limit,
        _ => Rule::NoOverdraft,
    };
    let maximum = Model::maximum(id).map(Into::into);
    let new = NewAccount { currency: currency.into(), rule: rule.into(), maximum, ..NewAccount::default() };
    new.with_id(id).with_limit(Model::limit(id))
}

struct World {
    store: MemoryStore,
    machines: Machines,
    log: Vec<Bytes>,
    stamp: u64,
}

impl World {
    fn apply(&mut self, command: crate::Command) -> Response {
        let index = Index(self.machines.progress().index.0 + 1);
        let payload = Batch::encode(Stamp(self.stamp), &[command]);
        self.log.push(payload.clone());
        let outcome = self.machines.apply(&self.store, index, Term(1), payload).unwrap();
        match outcome.replies.into_iter().next() {
            Some(crate::Reply::Ledger(reply)) => reply.response,
            other => panic!("a ledger reply, not {other:?}"),
        }
    }

    fn view(&self) -> View<'_> {
        View::new(&self.store, self.machines.progress().sequence)
    }
}

/// Accounts that are created together, or asked for once more.
fn new_chain(random: &mut Random, chains: &mut Vec<Vec<NewAccount>>) -> Vec<NewAccount> {
    if random.once_in(4)
        && let Some(again) = chains.get(random.below(chains.len().max(1) as u64) as usize)
    {
        let mut again = again.clone();
        if random.once_in(4) {
            again[0].user_data = "other".into();
        }
        return again;
    }
    let (first, count) = (FURTHER_FROM + 3 * chains.len() as u128, 1 + random.below(3) as u128);
    let account = |id: u128, random: &mut Random| {
        let opening = random.once_in(2).then(|| u128::from(random.below(80)).into());
        let number = format!("n{}", if random.once_in(8) { 0 } else { id });
        NewAccount { number, opening, linked: id + 1 < first + count, ..new_account(id) }
    };
    let chain: Vec<_> = (first..first + count).map(|id| account(id, random)).collect();
    chains.push(chain.clone());
    chain
}

/// A new transfer, or one of the past once more. A command's transfers are all `imported`, or none is.
fn wish(random: &mut Random, next_id: &mut u128, past: &[Wish], imported: Option<&mut u64>) -> Wish {
    if random.once_in(6)
        && let Some(again) = past.get(random.below(past.len().max(1) as u64) as usize)
        && again.imported_ms.is_some() == imported.is_some()
    {
        // A retry, or the same id with other content.
        let mut again = again.clone();
        if random.once_in(3) {
            (again.kind, again.options) = (Kind::Void { pending: 1 }, Options::default());
        }
        return again;
    }
    // Most ids grow with time, as UUIDs of version 7 do; some come late, and some are of other kinds.
    let time =
        if random.once_in(4) { next_id.saturating_sub(u128::from(random.below(1 << 12))) } else { *next_id };
    let id = if random.once_in(4) {
        1_000 + u128::from(random.below(1 << 20))
    } else {
        time << 80 | 7 << 76 | time
    };
    *next_id += 1 + u128::from(random.below(400));
    let account = |random: &mut Random| match random.once_in(6) {
        true => FURTHER_FROM + u128::from(random.below(20)),
        false => 1 + u128::from(random.below(ACCOUNTS as u64 + 1)),
    };
    let debit = account(random);
    let credit = if random.once_in(8) {
        account(random)
    } else {
        (debit + 1 + 2 * u128::from(random.below(3))) % 6 + 1
    };
    let amount = u128::from(random.below(30));
    let some_id = |random: &mut Random| {
        let pending = |wish: &&Wish| matches!(wish.kind, Kind::Pending { .. }) || wish.id.is_multiple_of(7);
        let choice: Vec<u128> = past.iter().rev().take(30).filter(pending).map(|wish| wish.id).collect();
        choice.get(random.below(choice.len().max(1) as u64) as usize).copied().unwrap_or(5)
    };
    let any_id = |random: &mut Random| {
        let choice = past.len().saturating_sub(1 + random.below(30) as usize);
        past.get(choice).map_or(5, |wish| wish.id)
    };
    let kind = match random.below(10) {
        0..4 => Kind::Single { debit, credit, amount },
        4 | 5 => Kind::Pending {
            debit,
            credit,
            amount,
            timeout_ms: if imported.is_some() { 0 } else { random.below(2) * random.below(50) },
        },
        6 => Kind::Post {
            pending: some_id(random),
            amount: Some(random.below(20).into()).filter(|amount| *amount > 0),
        },
        7 => Kind::Void { pending: some_id(random) },
        _ => Kind::Revert { reverted: any_id(random) },
    };
    let moves = matches!(kind, Kind::Single { .. } | Kind::Pending { .. });
    let options = Options {
        balancing_debit: moves && random.once_in(8),
        balancing_credit: moves && random.once_in(8),
        closing_debit: matches!(kind, Kind::Pending { .. }) && random.once_in(8),
        closing_credit: matches!(kind, Kind::Pending { .. }) && random.once_in(8),
    };
    let imported_ms = imported.map(|time| {
        *time += random.below(4);
        (*time).max(1)
    });
    Wish { id, kind, linked: random.once_in(5), options, imported_ms }
}

fn run(seed: u64, commands: usize) {
    let mut random = Random::new(seed);
    let store = MemoryStore::new();
    let machines = Machines::open(&store).unwrap();
    let mut world = World { store, machines, log: Vec::new(), stamp: 1 };
    let mut model = Model::default();
    for id in 1..=ACCOUNTS {
        world.apply(Operation::create_accounts(vec![new_account(id)]).into_command());
        model.balances.insert(id, Balances::default());
    }
    model.balances.extend([0, 1].map(|parity| (source(parity), Balances::default())));
    let (mut chains, mut imported_ms) = (Vec::new(), 0);
    let (mut next_id, mut past): (u128, Vec<Wish>) = (2_000_000, Vec::new());
    let mut pasts: Vec<(Revision, BTreeMap<u128, Balances>)> = Vec::new();
    for _ in 0..commands {
        world.stamp += random.below(20);
        model.expire(world.stamp);
        if random.once_in(10) {
            let account = 3 + u128::from(random.below(3));
            let (thaw, status) = match model.frozen.take() {
                Some(frozen) => (frozen, Status::Active),
                None => (account, Status::Frozen),
            };
            model.frozen = (status == Status::Frozen).then_some(thaw);
            let update = UpdateAccount { status: Some(status.into()), ..UpdateAccount::of(thaw) };
            world.apply(Operation::UpdateAccount(update).into_command());
        }
        if random.once_in(8) {
            world.apply(super::searched::some_indexes(&mut random).into_command());
        }
        if random.once_in(4) {
            let chain = new_chain(&mut random, &mut chains);
            let expected = model.chain(&chain);
            let answer = world.apply(Operation::create_accounts(chain.clone()).into_command());
            let Response::Accounts(results, _) = answer else { panic!("accounts") };
            let results: Vec<_> = results.into_iter().map(|result| result.map(drop)).collect();
            assert_eq!(results, expected, "seed {seed}: {chain:?}");
        }
        let most = if random.once_in(10) { 200 } else { 5 };
        let count = 1 + random.below(most);
        let imports = random.once_in(5);
        imported_ms = imported_ms.max(model.imported_ms);
        let draw = |_| wish(&mut random, &mut next_id, &past, imports.then_some(&mut imported_ms));
        let wishes: Vec<Wish> = (0..count).map(draw).collect();
        let mut transfers = Transfers::new(true);
        wishes.iter().for_each(|wish| transfers.push(&wish.transfer()));
        let mut expected = Vec::new();
        for group in wishes.chunk_by(|one, _| one.linked) {
            expected.extend(model.group(group, world.stamp));
        }
        let Response::Transfers(replies) = world.apply(transfers.into_command()) else { panic!("transfers") };
        let codes: Vec<Code> = replies.iter().map(|reply| reply.code).collect();
        assert_eq!(codes, expected, "seed {seed}: {wishes:?}");
        for reply in replies.iter().filter_map(|reply| reply.detail.as_deref()) {
            assert_eq!(reply.scale, 2);
        }
        past.extend(wishes);
        pasts.push((world.machines.progress().revision, model.balances.clone()));
        if random.once_in(5) {
            world.machines = Machines::open(&world.store).unwrap();
        }
    }
    check(&world, &model, &pasts, seed);
}

fn check(world: &World, model: &Model, pasts: &[(Revision, BTreeMap<u128, Balances>)], seed: u64) {
    let view = world.view();
    let mut sums: BTreeMap<u128, (u128, u128)> = BTreeMap::new();
    for (id, balances) in &model.balances {
        let stored = account(view, *id).unwrap().unwrap();
        assert_eq!(stored.balances, *balances, "seed {seed}, account {id}");
        assert_eq!(stored.closed, model.closed.contains(id), "seed {seed}, account {id}");
        let sum = sums.entry(Model::currency(*id)).or_default();
        sum.0 += balances.debits_posted;
        sum.1 += balances.credits_posted;
        if let Some(allowance) = stored.record.allowance() {
            let spent = balances.debits_posted + balances.debits_pending;
            assert!(spent <= balances.credits_posted + allowance, "seed {seed}: {id} is overdrawn");
        }
        if let Some(maximum) = stored.record.maximum() {
            let taken = balances.credits_posted + balances.credits_pending;
            assert!(taken <= balances.debits_posted + maximum, "seed {seed}: {id} holds too much");
        }
        let lines = statement(view, *id, None, Revision(0), usize::MAX - 1).unwrap().items;
        let all: usize = histories(view, *id).iter().map(|(_, history)| history.positions.len()).sum();
        assert_eq!(lines.len(), all);
        if let Some(oldest) = lines.last() {
            assert_eq!(oldest.balances.before(*id, &oldest.entry), Balances::default());
        }
    }
    assert!(sums.values().all(|(debits, credits)| debits == credits), "seed {seed}: sums are not zero");
    for (revision, balances) in pasts.iter().step_by(7) {
        for (id, then) in balances {
            assert_eq!(
                account_at(view, *id, *revision).unwrap().unwrap().balances,
                *then,
                "seed {seed}, {revision}"
            );
        }
    }
    for (id, (first, code)) in &model.answers {
        let found = transfer(view, *id).unwrap().expect("every answer is recorded");
        assert_eq!((found.entry.code, found.entry.transfer()), (*code, *first), "seed {seed}");
    }
    super::searched::check(world.view(), &world.machines.progress(), seed);
    // The same log gives the same bytes on a replica that never restarted.
    let (store, mut index) = (MemoryStore::new(), Index(0));
    let mut machines = Machines::open(&store).unwrap();
    for payload in &world.log {
        index = index.next();
        machines.apply(&store, index, Term(1), payload.clone()).unwrap();
    }
    assert!(store.dump() == world.store.dump(), "seed {seed}: a replay differs");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn transfers_agree_with_a_plain_model(seed: u64) {
        run(seed, 40);
    }
}

#[test]
fn malformed_commands_change_nothing() {
    let store = MemoryStore::new();
    let mut world = World { machines: Machines::open(&store).unwrap(), store, log: Vec::new(), stamp: 1 };
    let mut transfers = Transfers::new(false);
    transfers.push(&Transfer::new(5, Kind::Expired { pending: 4 }));
    let expired = transfers.into_command().bytes;
    let mut random = Random::new(1);
    for length in 0..40 {
        let noise: Bytes = (0..length).map(|_| random.number() as u8).collect();
        let near: Bytes = [&[1, 1 + (length % 2) as u8][..], &noise].concat().into();
        for bytes in [noise, near, expired.clone()] {
            let before = world.machines.progress().revision;
            let response = world.apply(crate::Command { face: crate::Face::Ledger, bytes });
            let empty = matches!(&response, Response::Accounts(none, _) if none.is_empty());
            assert!(response == Response::Malformed || empty, "{response:?}");
            assert_eq!(world.machines.progress().revision, before);
        }
    }
    assert!(world.store.dump().iter().all(|(key, ..)| key[0] != 3));
}
