//! The pages, asked as clients do.

use super::model::{AccountPatch, NewAccounts, NewTransfers};
use crate::grpc::route::Route;
use crate::http::api;
use crate::ledger::Book;
use crate::life::Life;
use crate::testing::alone;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use futures_util::StreamExt;
use quoin_core::ledger::{ACCOUNTS_MAX, TRANSFERS_MAX};
use quoin_engine::Engine;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::watch;
use tower_service::Service;

pub(super) const ALICE: &str = "0190b5e2-7f2c-7c1e-9d1a-000000000001";
pub(super) const BOB: &str = "0190b5e2-7f2c-7c1e-9d1a-000000000002";

/// A node's pages, and what keeps it running: streams end with the node.
#[derive(Clone)]
pub(super) struct Pages {
    router: Router,
    _running: Arc<watch::Sender<bool>>,
}

impl Pages {
    /// Those of this node.
    pub(super) fn of(engine: Engine) -> Self {
        let (running, life) = watch::channel(false);
        let router = api(Book::start(engine.clone()), Route::new(engine, Life(life.clone())), Life(life));
        Self { router, _running: Arc::new(running) }
    }

    pub(super) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        key: Option<&str>,
        body: &Value,
    ) -> (u16, Value) {
        self.with_headers(method, path, key.map(|key| ("idempotency-key", key)), body).await
    }

    pub(super) async fn with_headers(
        &mut self,
        method: &str,
        path: &str,
        headers: impl IntoIterator<Item = (&str, &str)>,
        body: &Value,
    ) -> (u16, Value) {
        let mut request =
            Request::builder().method(method).uri(path).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        let answer = self.router.call(request.body(body).unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    pub(super) async fn post(&mut self, path: &str, key: &str, body: &Value) -> (u16, Value) {
        self.ask("POST", path, Some(key), body).await
    }

    /// The status of an event stream, and its problem's type, or the ids of its first `count` events.
    async fn events(&mut self, query: &str, seen: &str, count: usize) -> (u16, Vec<String>) {
        let mut request = Request::builder().uri(format!("/v1/events{query}"));
        if !seen.is_empty() {
            request = request.header("last-event-id", seen);
        }
        let answer = self.router.call(request.body(Body::empty()).unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        if status != 200 {
            let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
            let problem: Value = serde_json::from_slice(&bytes).unwrap();
            return (status, vec![problem["type"].as_str().unwrap().replace("urn:quoin:problem:", "")]);
        }
        let (mut text, mut pieces) = (String::new(), answer.into_body().into_data_stream());
        let ids = |text: &str| {
            text.lines().filter_map(|line| line.strip_prefix("id: ").map(str::to_owned)).collect()
        };
        // An id is followed by what it is of.
        while text.matches("data: ").count() < count {
            text += std::str::from_utf8(&pieces.next().await.unwrap().unwrap()).unwrap();
        }
        (status, ids(&text))
    }

    pub(super) async fn get(&mut self, path: &str) -> (u16, Value) {
        self.ask("GET", path, None, &Value::Null).await
    }

    pub(super) async fn balances(&mut self) -> [String; 2] {
        let mut balances = Vec::new();
        for account in [ALICE, BOB] {
            let (_, account) = self.get(&format!("/v1/accounts/{account}")).await;
            balances.push(format!("{} {}", account["balance"], account["locked"]).replace('"', ""));
        }
        balances.try_into().unwrap()
    }
}

/// Runs `test` against a node with two accounts, the first with 1000 EUR.
pub(super) fn with_pages(test: impl AsyncFnOnce(Pages)) {
    alone(|engine| async move {
        let mut pages = Pages::of(engine);
        for id in [ALICE, BOB] {
            let made = pages.ask("POST", "/v1/accounts", None, &json!({"id": id, "currency": "EUR"})).await;
            assert_eq!(made.0, 201, "{made:?}");
        }
        let deposit = json!({"account": ALICE, "amount": "1000", "currency": "EUR"});
        assert_eq!(pages.ask("POST", "/v1/deposits", None, &deposit).await.0, 201);
        test(pages).await;
    });
}

pub(super) fn single(amount: &str) -> Value {
    json!({"debit_account": ALICE, "credit_account": BOB, "amount": amount, "currency": "EUR"})
}

/// The key of a batch was ignored: the same request twice moved the money twice, and made the accounts twice.
#[test]
fn every_post_with_a_key_is_done_once_and_refused_with_another_body() {
    with_pages(async |mut pages| {
        for id in [0x51, 0x52_u64] {
            let mut pending = single("5");
            (pending["kind"], pending["id"]) =
                ("pending".into(), format!("0190b5e2-7f2c-7c1e-9d1a-{id:012x}").into());
            assert_eq!(pages.ask("POST", "/v1/transfers", None, &pending).await.0, 201);
        }
        let ending =
            |id: &str, how: &str| format!("/v1/transfers/0190b5e2-7f2c-7c1e-9d1a-0000000000{id}/{how}");
        let batch = |amounts: &[&str]| json!({"transfers": amounts.iter().map(|one| single(one)).collect::<Vec<_>>()});
        let accounts = |count| json!({"accounts": vec![json!({"currency": "EUR"}); count]});
        let movement = |amount| json!({"account": ALICE, "amount": amount, "currency": "EUR"});
        let cases = [
            ("/v1/transfers".to_owned(), single("1"), vec![single("2")]),
            (
                "/v1/transfers/batch".into(),
                batch(&["3", "4"]),
                vec![batch(&["3"]), batch(&["3", "4", "5"]), batch(&["3", "5"])],
            ),
            (
                ending("51", "post"),
                json!({"amount": "1", "currency": "EUR"}),
                vec![json!({"amount": "2", "currency": "EUR"})],
            ),
            (ending("52", "void"), json!({}), vec![json!({"code": 1})]),
            ("/v1/deposits".into(), movement("6"), vec![movement("7")]),
            ("/v1/withdrawals".into(), movement("8"), vec![movement("9")]),
            ("/v1/accounts".into(), json!({"currency": "EUR"}), vec![json!({"currency": "USD"})]),
            ("/v1/accounts/batch".into(), accounts(2), vec![accounts(1), accounts(3)]),
        ];
        for (number, (path, body, others)) in cases.iter().enumerate() {
            let key = format!("key-{number}");
            let first = pages.post(path, &key, body).await;
            assert!(first.0 < 300, "{path}: {first:?}");
            let after = (pages.balances().await, pages.get("/v1/accounts").await);
            let again = pages.post(path, &key, body).await;
            assert!(again.0 < 300, "{path}: {again:?}");
            let without =
                |answer: &Value| answer.to_string().replace("\"duplicate\":true", "\"duplicate\":false");
            assert_eq!(without(&again.1), without(&first.1), "{path}");
            for other in others {
                let refused = pages.post(path, &key, other).await;
                assert_eq!(refused.0, 409, "{path}: {refused:?}");
                assert_eq!(refused.1["type"], "urn:quoin:problem:id_conflict");
            }
            assert_eq!((pages.balances().await, pages.get("/v1/accounts").await), after, "{path}");
        }
        // 1000 - 1 - 3 - 4 - 1 + 6 - 8
        assert_eq!(pages.balances().await, ["989.00 0.00", "9.00 0.00"]);
        // One key is one request, whatever its path.
        for (key, path, body) in [
            ("key-0", "/v1/transfers/batch", batch(&["1"])),
            ("key-1", "/v1/transfers", single("3")),
            ("key-1", "/v1/accounts/batch", accounts(2)),
            ("key-7", "/v1/transfers/batch", batch(&["3", "4"])),
            ("key-6", "/v1/accounts/batch", accounts(1)),
            ("key-7", "/v1/accounts", json!({"currency": "EUR"})),
        ] {
            assert_eq!(pages.post(path, key, &body).await.0, 409, "{key} {path}");
        }
        assert_eq!(pages.balances().await, ["989.00 0.00", "9.00 0.00"]);
    });
}

/// The past had the status and the limit of today, and accounts before they existed.
#[test]
fn the_past_is_shown_as_it_was_and_the_future_is_refused() {
    with_pages(async |mut pages| {
        let path = format!("/v1/accounts/{BOB}");
        for change in [json!({"status": "frozen"}), json!({"limit": "5", "metadata": {"tier": "gold"}})] {
            assert_eq!(pages.ask("PATCH", &path, None, &change).await.0, 200);
        }
        let (_, now) = pages.get(&path).await;
        let newest = now["changed_revision"].as_u64().unwrap();
        let (created, frozen) = (now["created_revision"].as_u64().unwrap(), newest - 1);
        let mut at = async |revision: u64| pages.get(&format!("{path}?at_revision={revision}")).await;
        let shown =
            |(status, account): (u16, Value)| (status, account["status"].clone(), account["rule"].clone());
        assert_eq!(at(newest).await, (200, now));
        assert_eq!(shown(at(frozen).await), (200, "frozen".into(), "no_overdraft".into()));
        assert_eq!(at(frozen).await.1["metadata"], json!({}));
        for revision in [frozen - 1, created] {
            assert_eq!(shown(at(revision).await), (200, "active".into(), "no_overdraft".into()));
        }
        let (status, problem) = at(created - 1).await;
        assert_eq!((status, &problem["type"]), (404, &"urn:quoin:problem:account_unknown".into()));
        let (status, problem) = at(newest + 1).await;
        assert_eq!((status, &problem["type"]), (400, &"urn:quoin:problem:out_of_range".into()));
        assert_eq!(problem["field"], "at_revision");
    });
}

/// A feed from a future revision waited for it without end, and then gave what another history had put there.
#[test]
fn events_go_on_where_they_ended_and_not_in_the_future_or_in_another_history() {
    with_pages(async |mut pages| {
        // The world's account and Alice's, Bob's, the deposit.
        let (status, ids) = pages.events("?from_revision=0", "", 4).await;
        assert_eq!((status, ids.len()), (200, 4));
        let (place, origin) = ids[3].split_once('@').unwrap();
        let (revision, _) = place.split_once('.').unwrap();
        let (newest, (cluster, time)) = (revision.parse::<u64>().unwrap(), origin.split_once('.').unwrap());
        for seen in [&ids[1], ids[1].split_once('@').unwrap().0] {
            assert_eq!(pages.events("", seen, 2).await, (200, ids[2..].to_vec()));
        }
        // The next revision is awaited, a later one may never come.
        let body = json!({"account": ALICE, "amount": "1", "currency": "EUR"});
        for (query, seen) in [(format!("?from_revision={}", newest + 1), ""), (String::new(), &ids[3])] {
            let mut other = pages.clone();
            let (awaited, done) =
                tokio::join!(other.events(&query, seen, 1), pages.ask("POST", "/v1/deposits", None, &body));
            assert_eq!((awaited.0, awaited.1.len(), done.0), (200, 1, 201));
            let begun = awaited.1[0].split('.').next().unwrap().parse::<u64>().unwrap();
            assert!(begun > newest, "{awaited:?}");
        }
        let future = newest + 100;
        let refused = |status: u16, word: &str| (status, vec![word.to_owned()]);
        let out_of_range = refused(400, "out_of_range");
        assert_eq!(pages.events(&format!("?from_revision={future}"), "", 1).await, out_of_range);
        assert_eq!(pages.events("", &format!("{future}.0"), 1).await, out_of_range);
        assert_eq!(pages.events("", &format!("{future}.0@{cluster}.{time}"), 1).await, out_of_range);
        // Another cluster, and one with the same id that has recorded something else there.
        for other in [format!("{place}@00000000000000ff.{time}"), format!("{place}@{cluster}.1")] {
            assert_eq!(pages.events("", &other, 1).await, refused(422, "precondition"));
        }
        assert_eq!(pages.events("", "17.x", 1).await, refused(400, "invalid_field"));
    });
}

/// An account that exists was answered as one that was created.
#[test]
fn an_account_that_exists_is_answered_with_200() {
    with_pages(async |mut pages| {
        let alice = json!({"id": ALICE, "currency": "EUR"});
        assert_eq!(pages.ask("POST", "/v1/accounts", None, &alice).await.0, 200);
    });
}

/// A list was taken for an object, its elements for the fields in their order.
#[test]
fn a_list_is_not_a_transfer() {
    with_pages(async |mut pages| {
        let list = json!([null, "single", ALICE, BOB, "1", "EUR", null, null, false, 0, "", ""]);
        for (path, body, field) in [
            ("/v1/transfers", &list, None),
            ("/v1/transfers/batch", &json!({"transfers": [list]}), Some("transfers[0]")),
        ] {
            let (status, problem) = pages.ask("POST", path, None, body).await;
            assert_eq!((status, problem["field"].as_str()), (400, field), "{problem}");
            assert!(problem["detail"].as_str().unwrap().contains("expected an object"), "{problem}");
        }
    });
}

/// A body had to be sent where nothing had to be said.
#[test]
fn a_pending_transfer_is_ended_without_a_body() {
    with_pages(async |mut pages| {
        let mut pending = single("5");
        for (id, how) in [
            ("0190b5e2-7f2c-7c1e-9d1a-000000000051", "post"),
            ("0190b5e2-7f2c-7c1e-9d1a-000000000052", "void"),
        ] {
            (pending["kind"], pending["id"]) = ("pending".into(), id.into());
            assert_eq!(pages.ask("POST", "/v1/transfers", None, &pending).await.0, 201);
            let path = format!("/v1/transfers/{id}/{how}");
            assert_eq!(pages.ask("POST", &path, None, &Value::Null).await.0, 201);
        }
        assert_eq!(pages.balances().await, ["995.00 0.00", "5.00 0.00"]);
    });
}

/// What was wrong was not told.
#[test]
fn a_currency_that_does_not_exist_is_named() {
    with_pages(async |mut pages| {
        let mut unknown = single("1");
        unknown["currency"] = "POINTS".into();
        for (path, body) in [("/v1/transfers", unknown), ("/v1/accounts", json!({"currency": "POINTS"}))] {
            let (status, problem) = pages.ask("POST", path, None, &body).await;
            assert_eq!((status, problem["field"].as_str()), (422, Some("currency")), "{problem}");
            assert!(problem["detail"].as_str().unwrap().contains("POINTS"), "{problem}");
        }
    });
}

/// An account whose number is another's id could not be named, nor one whose number is a step in a path.
#[test]
fn a_number_that_cannot_name_its_account_is_refused() {
    with_pages(async |mut pages| {
        for number in [" ", "a\0b", "..", ALICE] {
            let body = json!({"currency": "EUR", "number": number});
            let (status, problem) = pages.ask("POST", "/v1/accounts", None, &body).await;
            assert_eq!((status, problem["field"].as_str()), (400, Some("number")), "{number:?}: {problem}");
        }
    });
}

/// What clients keep with a transfer is answered as it was sent, and repeated content is the same content.
#[test]
fn a_transfer_keeps_its_user_data_and_metadata() {
    with_pages(async |mut pages| {
        let mut labelled = single("1");
        labelled["id"] = "0190b5e2-7f2c-7c1e-9d1a-000000000061".into();
        labelled["user_data_128"] = u128::MAX.to_string().into();
        labelled["user_data_64"] = u64::MAX.to_string().into();
        labelled["user_data_32"] = u32::MAX.into();
        labelled["metadata"] = json!({"shop": "Ulm", "a": ""});
        let (status, made) = pages.ask("POST", "/v1/transfers", None, &labelled).await;
        assert_eq!(status, 201, "{made}");
        let (_, found) = pages.get("/v1/transfers/0190b5e2-7f2c-7c1e-9d1a-000000000061").await;
        for name in ["user_data_128", "user_data_64", "user_data_32", "metadata"] {
            assert_eq!((&made[name], &found[name]), (&labelled[name], &labelled[name]), "{name}");
        }
        assert_eq!(pages.ask("POST", "/v1/transfers", None, &labelled).await.0, 200);
        labelled["user_data_32"] = 1.into();
        assert_eq!(pages.ask("POST", "/v1/transfers", None, &labelled).await.0, 409);
        let large = "x".repeat(1021);
        for (name, value) in [
            ("user_data_128", json!("340282366920938463463374607431768211456")),
            ("user_data_64", json!("18446744073709551616")),
            ("user_data_64", json!("+1")),
            ("metadata", json!({"name": large})),
        ] {
            let mut wrong = single("1");
            wrong[name] = value;
            let (status, problem) = pages.ask("POST", "/v1/transfers", None, &wrong).await;
            assert_eq!((status, problem["field"].as_str()), (400, Some(name)), "{problem}");
        }
        // They end pending ones, and come in, with the same.
        let deposit = json!({"account": BOB, "amount": "1", "currency": "EUR", "user_data_64": "7", "metadata": {"a": "b"}});
        let (_, deposited) = pages.ask("POST", "/v1/deposits", None, &deposit).await;
        assert_eq!((&deposited["user_data_64"], &deposited["metadata"]["a"]), (&json!("7"), &json!("b")));
    });
}

#[test]
fn many_transfers_and_accounts_are_looked_up_at_once_and_absent_ones_told() {
    with_pages(async |mut pages| {
        let id = |number: u32| format!("0190b5e2-7f2c-7c1e-9d1a-{number:012x}");
        for number in [0x51, 0x53] {
            let mut transfer = single("1");
            (transfer["id"], transfer["kind"]) = (id(number).into(), "pending".into());
            assert_eq!(pages.ask("POST", "/v1/transfers", None, &transfer).await.0, 201);
        }
        let voided = format!("/v1/transfers/{}/void", id(0x53));
        assert_eq!(pages.ask("POST", &voided, None, &Value::Null).await.0, 201);
        let wanted = json!({"ids": [id(0x53), id(0x52), id(0x51), id(0x53)]});
        let (status, found) = pages.ask("POST", "/v1/transfers/lookup", None, &wanted).await;
        assert_eq!((status, &found["answered"], &found["absent"]), (200, &4.into(), &json!([id(0x52)])));
        let shown: Vec<_> = found["transfers"].as_array().unwrap().iter().map(|one| &one["status"]).collect();
        assert_eq!(shown, ["voided", "pending", "voided"]);
        let wanted = json!({"accounts": [BOB, "nobody", "@world/EUR", id(9), ALICE]});
        let (status, found) = pages.ask("POST", "/v1/accounts/lookup", None, &wanted).await;
        assert_eq!((status, &found["absent"]), (200, &json!(["nobody", id(9)])));
        let shown: Vec<_> = found["accounts"].as_array().unwrap().iter().map(|one| &one["balance"]).collect();
        assert_eq!(shown, ["0.00", "-1000.00", "1000.00"]);
        for (path, body, field) in [
            ("/v1/transfers/lookup", json!({"ids": []}), "ids"),
            ("/v1/transfers/lookup", json!({"ids": vec![id(1); 1001]}), "ids"),
            ("/v1/transfers/lookup", json!({"ids": [id(1), "x"]}), "ids[1]"),
            ("/v1/accounts/lookup", json!({"accounts": []}), "accounts"),
        ] {
            let (status, problem) = pages.ask("POST", path, None, &body).await;
            assert_eq!((status, problem["field"].as_str()), (400, Some(field)), "{problem}");
        }
    });
}

/// All pages of a query, as ids' last digits; each page has at most `limit`.
async fn queried(pages: &mut Pages, query: &str, limit: usize) -> Vec<String> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let (status, page) = pages.get(&format!("/v1/transfers?limit={limit}{query}{cursor}")).await;
        assert_eq!(status, 200, "{query}: {page}");
        let transfers = page["transfers"].as_array().unwrap();
        assert!(transfers.len() <= limit);
        found.extend(transfers.iter().map(|one| one["id"].as_str().unwrap()[34..].to_owned()));
        match page["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return found,
        }
    }
}

/// `account` was no parameter, and to find a transfer all had to be read.
#[test]
fn transfers_are_found_by_what_they_hold_and_a_cursor_goes_on_with_its_own_query() {
    with_pages(async |mut pages| {
        for number in 0x10..0x1a_u32 {
            let mut transfer = if number % 2 == 0 { single("1") } else { single("2000") };
            transfer["id"] = format!("0190b5e2-7f2c-7c1e-9d1a-{number:012x}").into();
            transfer["code"] = (number % 3).into();
            transfer["reference"] = if number < 0x15 { "a" } else { "b" }.into();
            transfer["user_data_128"] = (u128::MAX - u128::from(number % 4)).to_string().into();
            if number == 0x18 {
                transfer["kind"] = "pending".into();
            }
            let status = pages.ask("POST", "/v1/transfers", None, &transfer).await.0;
            assert_eq!(status, if number % 2 == 0 { 201 } else { 422 });
        }
        let max = u128::MAX;
        let deposit = pages.get("/v1/transfers?limit=1").await.1["transfers"][0]["id"].to_string();
        let deposit = &deposit[35..37];
        for (query, expected) in [
            (format!("&account={ALICE}"), vec![deposit, "10", "12", "14", "16", "18"]),
            (format!("&account={ALICE}&side=debit&order=newest"), vec!["18", "16", "14", "12", "10"]),
            (format!("&account={ALICE}&side=credit"), vec![deposit]),
            (format!("&account={BOB}&status=pending"), vec!["18"]),
            (format!("&account={BOB}&code=1&reference=a"), vec!["10"]),
            ("&reference=b&status=refused".into(), vec!["15", "17", "19"]),
            (format!("&user_data_128={max}&order=newest"), vec!["18", "14", "10"]),
            ("&to_time=2000-01-01T00:00:00Z".into(), vec![]),
            ("&from_time=2000-01-01T00:00:00Z&reference=a&code=2".into(), vec!["11", "14"]),
        ] {
            for limit in [1, 2, 1000] {
                assert_eq!(queried(&mut pages, &query, limit).await, expected, "{query}");
            }
        }
        // A list of all goes on as before, too.
        let (_, page) = pages.get("/v1/transfers?limit=4").await;
        let (_, rest) = pages.get(&format!("/v1/transfers?after={}", page["next"].as_str().unwrap())).await;
        assert_eq!((rest["transfers"].as_array().unwrap().len(), &rest["next"]), (7, &Value::Null));
        let cursor = page["cursor"].as_str().unwrap();
        for (query, field) in [
            (format!("cursor={cursor}&code=1"), "cursor"),
            (format!("cursor={cursor}&order=newest"), "cursor"),
            (format!("cursor={cursor}0"), "cursor"),
            ("cursor=x".into(), "cursor"),
            ("side=debit".into(), "side"),
            (format!("account={ALICE}&status=refused"), "status"),
            ("account=nobody".into(), "account"),
            ("after=1.0&code=1".into(), "after"),
            ("from_time=now".into(), "from_time"),
            ("user_data_128=x".into(), "user_data_128"),
        ] {
            let (status, problem) = pages.get(&format!("/v1/transfers?{query}")).await;
            let expected = if field == "account" { 404 } else { 400 };
            assert_eq!((status, problem["field"].as_str()), (expected, Some(field)), "{query}: {problem}");
        }
    });
}

#[test]
fn accounts_are_found_and_added_up_by_the_beginning_of_their_numbers() {
    with_pages(async |mut pages| {
        for (number, amount) in [("shop:1", "1"), ("shop:2", "2"), ("shop", "4"), ("till:1", "8")] {
            let account = json!({"number": number, "currency": "EUR", "user_data": number[4..]});
            assert_eq!(pages.ask("POST", "/v1/accounts", None, &account).await.0, 201);
            let deposit = json!({"account": number, "amount": amount, "currency": "EUR"});
            assert_eq!(pages.ask("POST", "/v1/deposits", None, &deposit).await.0, 201);
        }
        let names = |page: &Value| -> Vec<String> {
            page["accounts"].as_array().unwrap().iter().map(|one| one["number"].to_string()).collect()
        };
        let (_, first) = pages.get("/v1/accounts?prefix=shop&limit=2").await;
        assert_eq!(
            (names(&first), &first["next"]),
            (vec!["\"shop\"".into(), "\"shop:1\"".into()], &Value::Null)
        );
        let cursor = first["cursor"].as_str().unwrap();
        let (_, rest) = pages.get(&format!("/v1/accounts?prefix=shop&limit=2&cursor={cursor}")).await;
        assert_eq!((names(&rest), &rest["cursor"]), (vec!["\"shop:2\"".into()], &Value::Null));
        let (_, found) = pages.get("/v1/accounts?user_data=:1&currency=EUR").await;
        assert_eq!(names(&found).len(), 2);
        let (status, sums) = pages.get("/v1/balances?prefix=shop:").await;
        let sum = &sums["sums"][0];
        assert_eq!((status, &sum["accounts"], &sum["balance"]), (200, &2.into(), &"3.00".into()));
        let revision = sums["revision"].as_u64().unwrap();
        let (_, sums) = pages.get(&format!("/v1/balances?prefix=shop:&at_revision={}", revision - 4)).await;
        assert_eq!(sums["sums"][0]["balance"], "3.00");
        let (_, sums) = pages.get(&format!("/v1/balances?prefix=shop:&at_revision={}", revision - 6)).await;
        assert_eq!((&sums["sums"][0]["balance"], &sums["sums"][0]["accounts"]), (&"1.00".into(), &1.into()));
        for (path, field) in [
            (format!("/v1/accounts?prefix=till&cursor={cursor}"), "cursor"),
            (format!("/v1/accounts?prefix=shop&after={ALICE}"), "after"),
            ("/v1/accounts?currency=eur".into(), "currency"),
            (format!("/v1/balances?prefix=shop&cursor={cursor}"), "cursor"),
            ("/v1/balances".into(), "prefix"),
        ] {
            let (status, problem) = pages.get(&path).await;
            assert_eq!((status, problem["field"].as_str()), (400, Some(field)), "{path}: {problem}");
        }
        let (status, problem) =
            pages.get(&format!("/v1/balances?prefix=s&at_revision={}", revision + 1)).await;
        assert_eq!((status, &problem["type"]), (400, &"urn:quoin:problem:out_of_range".into()));
    });
}

#[test]
fn indexes_are_switched_on_and_change_nothing_but_the_uniqueness_of_references() {
    with_pages(async |mut pages| {
        let mut transfer = single("1");
        transfer["reference"] = "rent".into();
        assert_eq!(pages.ask("POST", "/v1/transfers", None, &transfer).await.0, 201);
        let none = pages.get("/v1/indexes").await.1;
        assert_eq!((&none["on"], &none["unique_references_since"]), (&json!([]), &Value::Null));
        let next = none["revision"].as_u64().unwrap() + 1;
        let wanted = json!({"on": ["reference", "user_data_128"], "unique_references": true});
        let (status, set) = pages.ask("PUT", "/v1/indexes", None, &wanted).await;
        assert_eq!((status, &set["unique_references_since"]), (200, &next.into()));
        assert_eq!(set["on"][1], json!({"index": "user_data_128", "since_revision": next}));
        assert_eq!(pages.get("/v1/indexes").await.1["on"], set["on"]);
        assert_eq!(pages.ask("POST", "/v1/transfers", None, &transfer).await.0, 201);
        let (status, problem) = pages.ask("POST", "/v1/transfers", None, &transfer).await;
        assert_eq!((status, &problem["type"]), (422, &"urn:quoin:problem:reference_taken".into()));
        for query in ["&reference=rent", "&reference=rent&order=newest"] {
            assert_eq!(queried(&mut pages, query, 2).await.len(), 3, "before and since, refused ones too");
        }
        for (body, field) in [(json!({"on": ["name"]}), "on[0]"), (json!({"on": vec!["code"; 6]}), "on")] {
            let (status, problem) = pages.ask("PUT", "/v1/indexes", None, &body).await;
            assert_eq!((status, problem["field"].as_str()), (400, Some(field)), "{problem}");
        }
    });
}

fn malformed<T: serde::de::DeserializeOwned>(json: &str) -> Option<String> {
    serde_json::from_str::<T>(json).map(drop).map_err(|error| error.to_string()).err()
}

/// A body of 8 MiB of empty transfers took hundreds of megabytes.
#[test]
fn a_list_that_is_too_long_is_refused_where_it_becomes_too_long() {
    let list =
        |name: &str, element: &str, count| format!("{{\"{name}\": [{}]}}", vec![element; count].join(","));
    let transfers = |count| malformed::<NewTransfers>(&list("transfers", "{}", count));
    assert_eq!(transfers(TRANSFERS_MAX), None);
    let error = transfers(TRANSFERS_MAX + 1).expect("too many");
    assert!(error.contains("more than 8190 elements: send them in several requests"), "{error}");
    // What comes after it is not read: it is no JSON at all.
    let mut cut = list("transfers", "{}", TRANSFERS_MAX + 1);
    cut.truncate(cut.len() - 2);
    assert_eq!(malformed::<NewTransfers>(&(cut + ",!")).map(|error| error.contains("8190")), Some(true));
    let account = r#"{"currency":"EUR"}"#;
    let accounts = |count| malformed::<NewAccounts>(&list("accounts", account, count));
    assert_eq!(accounts(ACCOUNTS_MAX), None);
    assert!(accounts(ACCOUNTS_MAX + 1).expect("too many").contains("more than 1000 elements"));
}

#[test]
fn texts_are_bounded_too_and_may_be_absent() {
    let patch = |count: usize| {
        let texts: Vec<String> = (0..count).map(|number| format!("\"{number}\":\"\"")).collect();
        malformed::<AccountPatch>(&format!("{{\"metadata\": {{{}}}}}", texts.join(",")))
    };
    assert_eq!((patch(0), patch(4096)), (None, None));
    assert!(patch(4097).expect("too many").contains("more than 4096 texts"));
    for json in ["{}", r#"{"metadata": null}"#] {
        assert_eq!(malformed::<AccountPatch>(json), None);
    }
}

/// Accounts and their opening transfers have one revision, and numbers of their own: who had seen account 70 was taken to have
/// seen transfer 70 too, which was never sent.
#[test]
fn who_comes_back_between_accounts_and_their_openings_misses_nothing() {
    with_pages(async |mut pages| {
        let (_, before) = pages.get("/v1/accounts/@world%2FEUR").await;
        let revision = before["balance_revision"].as_u64().unwrap_or(0) + 1;
        let account = json!({"currency": "EUR", "initial_balance": "1"});
        let made = pages.post("/v1/accounts/batch", "many", &json!({"accounts": vec![account; 100]})).await;
        assert_eq!(made.0, 200, "{made:?}");
        let from = format!("?from_revision={revision}");
        let (_, ids) = pages.events(&from, "", 200).await;
        let ids: Vec<String> = ids.into_iter().take(200).collect();
        for seen in [0, 1, 63, 64, 65, 98, 99, 100, 150, 198] {
            let left = 199 - seen;
            let (status, rest) = pages.events("", &ids[seen], left).await;
            assert_eq!((status, &rest[..left]), (200, &ids[seen + 1..]), "after {}", ids[seen]);
        }
    });
}
