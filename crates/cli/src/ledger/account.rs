//! `quoin ledger account`: create, show, list, set.

use super::client::{Client, client, find, find_at, halves, id_bytes, id_text, join, time_text};
use super::pages::{Entry, List, count};
use crate::connection::{Connection, Read};
use crate::outcome::Write as _;
use crate::{outcome, output};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand, ValueEnum};
use quoin_core::ledger::{format_amount, format_signed, iso_scale, parse_amount};
use quoin_proto::quoin::ledger::v1 as pb;
use quoin_proto::quoin::ledger::v1::get_account_request::At;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use uuid::Uuid;

/// Commands on accounts.
#[derive(Subcommand)]
pub(crate) enum Account {
    /// Create an account
    Create(Create),
    /// Show an account
    Show {
        /// Number or id of the account
        account: String,
        /// Show it as of this revision [default: the newest]
        #[arg(long, value_name = "REVISION")]
        at_revision: Option<u64>,
        /// Show it as of this time, in milliseconds since the Unix epoch
        #[arg(long, value_name = "MS", conflicts_with = "at_revision")]
        at_time_ms: Option<u64>,
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        connection: Connection,
    },
    /// List accounts
    List {
        /// Maximum number of accounts
        #[arg(long, default_value_t = 100, value_name = "NUMBER", value_parser = count, allow_negative_numbers = true)]
        limit: u64,
        /// List all of them
        #[arg(long, conflicts_with = "limit")]
        all: bool,
        /// Go on where a page ended: the id that it named
        #[arg(long, value_name = "UUID")]
        after: Option<Uuid>,
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        connection: Connection,
    },
    /// Change an account's status, overdraft rule or maximum
    Set {
        /// Number or id of the account
        account: String,
        /// New status: a frozen account moves no money, a closed one never will again
        #[arg(long, value_enum)]
        status: Option<Status>,
        #[command(flatten)]
        rule: Rule,
        /// Let the account hold at most this much, with what is pending; `none` for no bound
        #[arg(long, value_name = "AMOUNT", allow_negative_numbers = true)]
        maximum: Option<String>,
        #[command(flatten)]
        connection: Connection,
    },
}

/// An account to create.
#[derive(Args)]
pub(crate) struct Create {
    /// Number of the account, unique: the name that people use; without one it has only its id
    number: Option<String>,
    /// Code of ISO 4217, or of a custom unit
    #[arg(long)]
    currency: String,
    /// Id of the account; with it the command can be repeated [default: a new id]
    #[arg(long, value_name = "UUID")]
    id: Option<Uuid>,
    #[command(flatten)]
    rule: Rule,
    /// Let the account hold at most this much, with what is pending; 0: credits never exceed debits
    #[arg(long, value_name = "AMOUNT", allow_negative_numbers = true)]
    maximum: Option<String>,
    /// Deposit this much, from @world/ and the currency, together with the creation
    #[arg(long, value_name = "AMOUNT", allow_negative_numbers = true)]
    initial_balance: Option<String>,
    /// Let it wait: no transfers until `set --status active`
    #[arg(long)]
    pending: bool,
    /// Text to keep with the account
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    data: String,
    /// Text to keep with the account, by name; repeatable
    #[arg(long = "meta", value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    #[command(flatten)]
    connection: Connection,
}

/// How far an account may go below zero.
#[derive(Args, Default)]
pub(crate) struct Rule {
    /// Let the balance go this far below zero
    #[arg(long, value_name = "AMOUNT", group = "overdraft", allow_negative_numbers = true)]
    limit: Option<String>,
    /// Let the balance go below zero without limit
    #[arg(long, group = "overdraft")]
    unlimited: bool,
    /// Keep the balance at or above zero (the rule of a new account)
    #[arg(long, group = "overdraft")]
    no_overdraft: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Status {
    Active,
    Frozen,
    Closed,
}

pub(super) async fn run(account: Account) -> Result<ExitCode> {
    match account {
        Account::Create(account) => create(account).await,
        Account::Show { account, at_revision, at_time_ms, read, connection } => {
            let at = at_revision.map(At::Revision).or(at_time_ms.map(At::TimeMs));
            let account = find_at(&mut client(&connection).await?, &account, at, read).await?;
            show(&connection, &account)
        }
        Account::List { limit, all, after, read, connection } => {
            let list = List::new(&connection, "accounts", HEAD, limit, all);
            self::list(&mut client(&connection).await?, list, after, read).await
        }
        Account::Set { account, status, rule, maximum, connection } => {
            let mut client = client(&connection).await?;
            let changed = set(&mut client, &account, status, &rule, maximum.as_deref()).await?;
            connection.say(&as_json(&changed), "done")
        }
    }
}

async fn create(account: Create) -> Result<ExitCode> {
    let Create { number, currency, id, rule, maximum, initial_balance, pending, data, metadata, connection } =
        account;
    let number = number.map_or(Ok(String::new()), |number| match number.is_empty() {
        true => bail!("the number is empty: give one, or leave it out for an account that has only its id"),
        false => Ok(number),
    })?;
    let id = id.unwrap_or_else(Uuid::now_v7);
    let mut account = pb::Account {
        id: id_bytes(id),
        number,
        user_data: data,
        status: if pending { pb::Status::Pending } else { pb::Status::Active }.into(),
        ..pb::Account::default()
    };
    for pair in metadata {
        let (name, value) =
            pair.split_once('=').with_context(|| format!("--meta {pair:?} is not NAME=VALUE"))?;
        account.metadata.insert(name.into(), value.into());
    }
    let scale = currency.parse().ok().and_then(iso_scale);
    account.currency = currency;
    if let Some((rule, limit)) = rule_of(&rule, scale)? {
        account.rule = rule.into();
        (account.limit, account.limit_high) = halves(limit);
    }
    account.maximum = maximum.map(|most| amount_of(&most, scale)).transpose()?;
    account.opening = initial_balance.map(|amount| amount_of(&amount, scale)).transpose()?;
    let request = pb::CreateAccountsRequest { accounts: vec![account] };
    let answer = client(&connection).await?.create_accounts(request).await;
    let result = answer
        .or_repeat_with_id(&id.to_string())?
        .into_inner()
        .results
        .pop()
        .context("an answer without a result")?;
    match result.account {
        Some(account) => connection.say(&as_json(&account), &id_text(&account.id)),
        None => outcome::refuse(result.refused),
    }
}

async fn set(
    client: &mut Client,
    account: &str,
    status: Option<Status>,
    rule: &Rule,
    maximum: Option<&str>,
) -> Result<pb::Account> {
    let known = find(client, account).await?;
    let status = status.map(|status| match status {
        Status::Active => pb::Status::Active,
        Status::Frozen => pb::Status::Frozen,
        Status::Closed => pb::Status::Closed,
    });
    let rule = rule_of(rule, Some(known.scale))?;
    ensure!(
        status.is_some() || rule.is_some() || maximum.is_some(),
        "nothing to change: give --status, --maximum or an overdraft rule"
    );
    let no_maximum = maximum == Some("none");
    let maximum = maximum.filter(|_| !no_maximum).map(|most| amount_of(most, Some(known.scale)));
    let (limit, limit_high) = halves(rule.map_or(0, |(_, limit)| limit));
    let request = pb::UpdateAccountRequest {
        id: known.id,
        status: status.map(Into::into),
        rule: rule.map(|(rule, _)| rule.into()),
        limit,
        limit_high,
        maximum: maximum.transpose()?,
        no_maximum,
        ..Default::default()
    };
    client
        .update_account(request)
        .await
        .or_send_again()?
        .into_inner()
        .account
        .context("an answer without an account")
}

fn rule_of(rule: &Rule, scale: Option<u32>) -> Result<Option<(pb::Rule, u128)>> {
    Ok(match rule {
        Rule { limit: Some(limit), .. } => {
            let scale =
                scale.context("--limit of an account in a custom unit: create the account, then set it")?;
            Some((pb::Rule::Limit, parse_amount(limit, scale)?))
        }
        Rule { unlimited: true, .. } => Some((pb::Rule::Unlimited, 0)),
        Rule { no_overdraft: true, .. } => Some((pb::Rule::NoOverdraft, 0)),
        _ => None,
    })
}

fn amount_of(text: &str, scale: Option<u32>) -> Result<pb::Amount> {
    let scale = scale
        .context("amounts of an account in a custom unit: create it without them, then set or deposit")?;
    let (amount, amount_high) = halves(parse_amount(text, scale)?);
    Ok(pb::Amount { amount, amount_high })
}

/// The balance: credits less debits.
pub(super) fn balance(balances: &pb::Balances, scale: u32) -> String {
    let credits = join(balances.credits_posted, balances.credits_posted_high);
    format_signed(credits, join(balances.debits_posted, balances.debits_posted_high), scale)
}

/// What pending transfers have set aside.
pub(super) fn locked(balances: &pb::Balances, scale: u32) -> String {
    format_amount(join(balances.debits_pending, balances.debits_pending_high), scale)
}

fn rule_text(account: &pb::Account) -> String {
    match account.rule() {
        pb::Rule::NoOverdraft => "none".into(),
        pb::Rule::Limit => format_amount(join(account.limit, account.limit_high), account.scale),
        pb::Rule::Unlimited => "unlimited".into(),
    }
}

fn maximum_text(account: &pb::Account) -> String {
    let amount = |most: pb::Amount| format_amount(join(most.amount, most.amount_high), account.scale);
    account.maximum.map_or_else(|| "unlimited".into(), amount)
}

fn status_text(account: &pb::Account) -> &'static str {
    match account.status() {
        pb::Status::Active => "active",
        pb::Status::Frozen => "frozen",
        pb::Status::Closed => "closed",
        pb::Status::Pending => "pending",
    }
}

fn as_json(account: &pb::Account) -> Value {
    let mut value = json!({
        "id": id_text(&account.id),
        "number": account.number,
        "currency": account.currency,
        "status": status_text(account),
        "overdraft": rule_text(account),
        "maximum": maximum_text(account),
        "created_revision": account.created_revision,
    });
    if !account.user_data.is_empty() {
        value["data"] = account.user_data.clone().into();
    }
    if !account.metadata.is_empty() {
        value["metadata"] = json!(account.metadata.iter().collect::<BTreeMap<_, _>>());
    }
    if account.created_ms > 0 {
        value["created"] = time_text(account.created_ms).into();
    }
    if let Some(balances) = &account.balances {
        value["balance"] = balance(balances, account.scale).into();
        value["locked"] = locked(balances, account.scale).into();
    }
    value
}

/// Lists accounts by id.
async fn list(client: &mut Client, mut list: List, after: Option<Uuid>, read: Read) -> Result<ExitCode> {
    let (mut after, mut more) = (after.map(id_bytes).unwrap_or_default(), true);
    while more && list.page() > 0 {
        let (limit, consistency) = (list.page(), read.consistency());
        let request = pb::ListAccountsRequest { after, limit, consistency, ..Default::default() };
        let page = client.list_accounts(request).await?.into_inner();
        let entry = |account: &pb::Account| -> Entry { (cells(account), as_json(account)) };
        list.print(page.accounts.iter().map(entry).collect())?;
        (after, more) = (page.next, page.more);
    }
    list.end(more.then(|| ("after", id_text(&after))))
}

const HEAD: &[&str] = &["account", "currency", "balance", "locked", "overdraft", "maximum", "status"];

fn cells(account: &pb::Account) -> Vec<String> {
    let none = pb::Balances::default();
    let balances = account.balances.as_ref().unwrap_or(&none);
    vec![
        if account.number.is_empty() { id_text(&account.id) } else { account.number.clone() },
        account.currency.clone(),
        balance(balances, account.scale),
        locked(balances, account.scale),
        rule_text(account),
        maximum_text(account),
        status_text(account).into(),
    ]
}

/// Shows an account, and below it what is kept with it.
fn show(connection: &Connection, account: &pb::Account) -> Result<ExitCode> {
    if connection.json {
        output::json(&as_json(account))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::table(HEAD, &[cells(account)])?;
    let mut out = std::io::stdout().lock();
    if !account.user_data.is_empty() {
        writeln!(out, "data: {}", account.user_data)?;
    }
    for (name, value) in account.metadata.iter().collect::<BTreeMap<_, _>>() {
        writeln!(out, "{name}={value}")?;
    }
    Ok(ExitCode::SUCCESS)
}
