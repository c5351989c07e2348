//! What transfers can do besides moving an amount, asked as clients do.

use super::tests::{ALICE, BOB, single, with_pages};
use serde_json::{Value, json};

fn word(answer: &(u16, Value)) -> (u16, &str) {
    let kind = answer.1["type"].as_str().unwrap_or_default();
    (answer.0, kind.trim_start_matches("urn:quoin:problem:"))
}

#[test]
fn a_maximum_balance_is_kept_shown_and_changed() {
    with_pages(async |mut pages| {
        let path = format!("/v1/accounts/{BOB}");
        let patch = pages.ask("PATCH", &path, None, &json!({"maximum_balance": "10"})).await;
        assert_eq!((patch.0, &patch.1["maximum_balance"]), (200, &json!("10.00")));
        let refused = pages.ask("POST", "/v1/transfers", None, &single("10.01")).await;
        assert_eq!(word(&refused), (422, "maximum_exceeded"));
        assert_eq!(pages.ask("POST", "/v1/transfers", None, &single("10")).await.0, 201);
        let refused = pages.ask("PATCH", &path, None, &json!({"maximum_balance": "9.99"})).await;
        assert_eq!(
            (word(&refused), &refused.1["field"]),
            ((422, "above_maximum"), &json!("maximum_balance"))
        );
        let patch = pages.ask("PATCH", &path, None, &json!({"maximum_balance": "none"})).await;
        assert_eq!((patch.0, patch.1.get("maximum_balance")), (200, None));
        assert_eq!(pages.ask("POST", "/v1/transfers", None, &single("10.01")).await.0, 201);
        let new = json!({"currency": "EUR", "number": "sales", "rule": "unlimited", "maximum_balance": "0"});
        let made = pages.ask("POST", "/v1/accounts", None, &new).await;
        assert_eq!((made.0, &made.1["maximum_balance"]), (201, &json!("0.00")));
        let credit =
            json!({"debit_account": ALICE, "credit_account": "sales", "amount": "1", "currency": "EUR"});
        assert_eq!(word(&pages.ask("POST", "/v1/transfers", None, &credit).await), (422, "maximum_exceeded"));
    });
}

#[test]
fn a_balancing_transfer_tells_what_it_moved() {
    with_pages(async |mut pages| {
        let mut most = single("5000");
        most["balancing"] = "debit".into();
        let done = pages.ask("POST", "/v1/transfers", None, &most).await;
        assert_eq!(
            (done.0, &done.1["amount"], &done.1["balancing"]),
            (201, &json!("1000.00"), &json!("debit"))
        );
        let refused = pages.ask("POST", "/v1/transfers", None, &most).await;
        assert_eq!(word(&refused), (422, "insufficient_funds"));
        let all =
            json!({"debit_account": BOB, "credit_account": ALICE, "currency": "EUR", "balancing": "both"});
        // Neither may take more than nothing without a maximum, once it is at zero.
        assert_eq!(word(&pages.ask("POST", "/v1/transfers", None, &all).await), (422, "maximum_exceeded"));
        let all =
            json!({"debit_account": BOB, "credit_account": ALICE, "currency": "EUR", "balancing": "debit"});
        let done = pages.ask("POST", "/v1/transfers", None, &all).await;
        assert_eq!((done.0, &done.1["amount"]), (201, &json!("1000.00")));
        assert_eq!(pages.balances().await, ["1000.00 0.00", "0.00 0.00"]);
        let foreign = json!({"kind": "void", "pending_id": ALICE, "balancing": "debit"});
        let refused = pages.ask("POST", "/v1/transfers", None, &foreign).await;
        assert_eq!((refused.0, &refused.1["field"]), (400, &json!("balancing")));
    });
}

#[test]
fn a_transfer_is_reverted_once_and_both_say_so() {
    with_pages(async |mut pages| {
        let done = pages.ask("POST", "/v1/transfers", None, &single("7")).await.1;
        let path = format!("/v1/transfers/{}", done["id"].as_str().unwrap());
        let revert = format!("{path}/revert");
        let made = pages.post(&revert, "key-1", &json!({"reference": "mistake"})).await;
        assert_eq!((made.0, &made.1["kind"], &made.1["reverted_id"]), (201, &json!("revert"), &done["id"]));
        assert_eq!((&made.1["amount"], &made.1["debit_account"]), (&json!("7.00"), &json!(BOB)));
        assert_eq!(pages.balances().await, ["1000.00 0.00", "0.00 0.00"]);
        assert_eq!(pages.post(&revert, "key-1", &json!({"reference": "mistake"})).await.0, 200);
        assert_eq!(word(&pages.post(&revert, "key-1", &json!({})).await), (409, "id_conflict"));
        assert_eq!(word(&pages.post(&revert, "key-2", &Value::Null).await), (422, "already_reverted"));
        assert_eq!(pages.get(&path).await.1["reverted_by"], made.1["id"]);
        let again = format!("/v1/transfers/{}/revert", made.1["id"].as_str().unwrap());
        assert_eq!(word(&pages.post(&again, "key-3", &Value::Null).await), (422, "not_revertible"));
        let unknown = format!("/v1/transfers/{ALICE}/revert");
        assert_eq!(word(&pages.post(&unknown, "key-4", &Value::Null).await), (422, "reverted_unknown"));
    });
}

#[test]
fn a_dry_run_answers_as_the_request_would_be_and_changes_nothing() {
    with_pages(async |mut pages| {
        let before = (pages.balances().await, pages.get("/v1/transfers").await);
        let path = "/v1/transfers?dry_run=true";
        let would = pages.post(path, "key-1", &single("7")).await;
        assert_eq!((would.0, &would.1["dry_run"], &would.1["revision"]), (200, &json!(true), &json!(0)));
        assert_eq!(would.1["credit_balance"]["balance"], "7.00");
        let refused = pages.ask("POST", path, None, &single("1000.01")).await;
        assert_eq!(word(&refused), (422, "insufficient_funds"));
        assert_eq!(refused.1["transfer"]["dry_run"], true);
        let batch = json!({"transfers": [single("600"), single("600")]});
        let would = pages.post("/v1/transfers/batch?dry_run=true", "key-2", &batch).await;
        assert_eq!((would.0, &would.1["dry_run"]), (200, &json!(true)));
        assert_eq!(would.1["results"][1]["transfer"]["reason"], "insufficient_funds");
        let deposit = json!({"account": ALICE, "amount": "5", "currency": "EUR"});
        assert_eq!(pages.post("/v1/deposits?dry_run=true", "key-3", &deposit).await.0, 200);
        let legs = json!({"legs": [single("1"), single("2")]});
        let would = pages.post("/v1/transactions?dry_run=true", "key-4", &legs).await;
        assert_eq!((would.0, &would.1["dry_run"]), (200, &json!(true)));
        assert_eq!((pages.balances().await, pages.get("/v1/transfers").await), before);
        // The key is still free, and what it did is told afterwards.
        let done = pages.post("/v1/transfers", "key-1", &single("8")).await;
        assert_eq!((done.0, done.1.get("dry_run")), (201, None));
        let again = pages.post(path, "key-1", &single("8")).await;
        assert_eq!((again.0, &again.1["revision"]), (200, &done.1["revision"]));
        assert_eq!(word(&pages.post(path, "key-1", &single("9")).await), (409, "id_conflict"));
    });
}

#[test]
fn the_legs_of_a_transaction_are_done_together_or_not_at_all() {
    with_pages(async |mut pages| {
        let out =
            json!({"debit_account": BOB, "credit_account": "@world/EUR", "amount": "4", "currency": "EUR"});
        let two = json!({"legs": [single("10"), out], "reference": "order 17"});
        let done = pages.post("/v1/transactions", "key-1", &two).await;
        assert_eq!((done.0, done.1["transfers"].as_array().map(Vec::len)), (201, Some(2)));
        assert_eq!(done.1["transfers"][1]["reference"], "order 17");
        assert_eq!(pages.balances().await, ["990.00 0.00", "6.00 0.00"]);
        let again = pages.post("/v1/transactions", "key-1", &two).await;
        assert_eq!((again.0, again.1), (200, done.1.clone()));
        let one = json!({"legs": [single("10")], "reference": "order 17"});
        assert_eq!(word(&pages.post("/v1/transactions", "key-1", &one).await), (409, "id_conflict"));
        // The id does the same as a key.
        let mut by_id = two.clone();
        by_id["id"] = done.1["id"].clone();
        assert_eq!(pages.ask("POST", "/v1/transactions", None, &by_id).await.0, 200);
        let failing = json!({"legs": [single("10"), single("2000"), single("1")]});
        let refused = pages.post("/v1/transactions", "key-2", &failing).await;
        assert_eq!((word(&refused), &refused.1["field"]), ((422, "insufficient_funds"), &json!("legs[1]")));
        let again = pages.post("/v1/transactions", "key-2", &failing).await;
        assert_eq!((word(&again), &again.1["field"]), ((422, "insufficient_funds"), &json!("legs[1]")));
        assert_eq!(pages.balances().await, ["990.00 0.00", "6.00 0.00"]);
        for (name, value) in [("id", json!(ALICE)), ("linked", json!(true)), ("amount", json!("x"))] {
            let mut leg = single("1");
            leg[name] = value;
            let body = json!({"legs": [single("1"), leg]});
            let refused = pages.ask("POST", "/v1/transactions", None, &body).await;
            assert_eq!((refused.0, &refused.1["field"]), (400, &json!(format!("legs[1].{name}"))));
        }
        let none = pages.ask("POST", "/v1/transactions", None, &json!({"legs": []})).await;
        assert_eq!((none.0, &none.1["field"]), (400, &json!("legs")));
    });
}

#[test]
fn linked_accounts_are_created_together_and_open_with_a_balance() {
    with_pages(async |mut pages| {
        let batch = |number: &str, maximum: &str| {
            let other =
                json!({"number": "b", "currency": "EUR", "initial_balance": "7", "maximum_balance": maximum});
            json!({"accounts": [{"number": number, "currency": "EUR", "initial_balance": "5", "linked": true}, other]})
        };
        let refused = pages.post("/v1/accounts/batch", "key-1", &batch("a", "6.99")).await;
        assert_eq!(refused.1["results"][0]["refused"], "another account of the linked chain was refused");
        assert!(
            refused.1["results"][1]["refused"].as_str().unwrap().contains("maximum balance"),
            "{refused:?}"
        );
        assert_eq!(pages.get("/v1/accounts/a").await.0, 404);
        let made = pages.post("/v1/accounts/batch", "key-2", &batch("a", "7")).await;
        let id = made.1["results"][1]["account"]["id"].clone();
        assert_eq!(pages.get("/v1/accounts/b").await.1["balance"], "7.00", "{made:?}");
        assert_eq!(pages.get("/v1/accounts/a").await.1["balance"], "5.00");
        assert_eq!(pages.post("/v1/accounts/batch", "key-2", &batch("a", "7")).await.1, made.1);
        let opening = pages.get(&format!("/v1/transfers/{}", id.as_str().unwrap())).await;
        assert_eq!(
            (opening.0, &opening.1["credit_account"], &opening.1["amount"]),
            (200, &id, &json!("7.00"))
        );
        let new = json!({"currency": "EUR", "initial_balance": "8", "maximum_balance": "1"});
        let refused = pages.ask("POST", "/v1/accounts", None, &new).await;
        assert_eq!(
            (word(&refused), &refused.1["field"]),
            ((422, "maximum_exceeded"), &json!("initial_balance"))
        );
    });
}

#[test]
fn a_pending_account_takes_part_in_nothing_until_it_is_active() {
    with_pages(async |mut pages| {
        let new = json!({"number": "later", "currency": "EUR", "status": "pending"});
        let made = pages.ask("POST", "/v1/accounts", None, &new).await;
        assert_eq!((made.0, &made.1["status"]), (201, &json!("pending")));
        let pay =
            json!({"debit_account": ALICE, "credit_account": "later", "amount": "1", "currency": "EUR"});
        assert_eq!(
            word(&pages.ask("POST", "/v1/transfers", None, &pay).await),
            (422, "credit_account_pending")
        );
        let active = json!({"status": "active"});
        assert_eq!(pages.ask("PATCH", "/v1/accounts/later", None, &active).await.1["status"], "active");
        assert_eq!(pages.ask("POST", "/v1/transfers", None, &pay).await.0, 201);
        let pending = json!({"status": "pending"});
        assert_eq!(pages.ask("PATCH", "/v1/accounts/later", None, &pending).await.0, 400);
        let frozen = json!({"currency": "EUR", "status": "frozen"});
        let refused = pages.ask("POST", "/v1/accounts", None, &frozen).await;
        assert_eq!((refused.0, &refused.1["field"]), (400, &json!("status")));
    });
}

#[test]
fn a_pending_transfer_closes_an_account_until_it_is_voided() {
    with_pages(async |mut pages| {
        let close = json!({"kind": "pending", "debit_account": ALICE, "credit_account": BOB, "currency": "EUR",
            "closing": "debit"});
        let closed = pages.ask("POST", "/v1/transfers", None, &close).await;
        assert_eq!(
            (closed.0, &closed.1["closing"], &closed.1["amount"]),
            (201, &json!("debit"), &json!("0.00"))
        );
        assert_eq!(pages.get(&format!("/v1/accounts/{ALICE}")).await.1["status"], "closed");
        let refused = pages.ask("POST", "/v1/transfers", None, &single("1")).await;
        assert_eq!(word(&refused), (422, "debit_account_closed"));
        let path = format!("/v1/transfers/{}", closed.1["id"].as_str().unwrap());
        let post = pages.ask("POST", &format!("{path}/post"), None, &Value::Null).await;
        assert_eq!(word(&post), (422, "debit_account_closed"));
        assert_eq!(pages.ask("POST", &format!("{path}/void"), None, &Value::Null).await.0, 201);
        assert_eq!(pages.get(&format!("/v1/accounts/{ALICE}")).await.1["status"], "active");
        assert_eq!(pages.ask("POST", "/v1/transfers", None, &single("1")).await.0, 201);
        let mut foreign = single("1");
        foreign["closing"] = "debit".into();
        assert_eq!(pages.ask("POST", "/v1/transfers", None, &foreign).await.1["field"], "closing");
    });
}

#[test]
fn client_times_are_shown_and_those_of_imports_are_in_order() {
    with_pages(async |mut pages| {
        let at = |time: &str, imported: bool| {
            let mut transfer = single("1");
            (transfer["client_time"], transfer["imported"]) = (time.into(), imported.into());
            transfer
        };
        let mut settled = at("2040-01-01T00:00:00Z", false);
        settled["settle_time"] = "2026-11-21T09:45:00Z".into();
        let done = pages.ask("POST", "/v1/transfers", None, &settled).await;
        assert_eq!(done.0, 201, "{done:?}");
        let found = pages.get(&format!("/v1/transfers/{}", done.1["id"].as_str().unwrap())).await.1;
        assert!(found["client_time"].as_str().unwrap().starts_with("2040-01-01T00:00:00"), "{found}");
        assert!(found["settle_time"].as_str().unwrap().starts_with("2026-11-21T09:45:00"), "{found}");
        let batch =
            json!({"transfers": [at("2020-01-01T00:00:00Z", true), at("2020-01-01T00:00:00Z", true)]});
        let done = pages.ask("POST", "/v1/transfers/batch", None, &batch).await.1;
        assert_eq!(done["results"][0]["transfer"]["imported"], true);
        assert_eq!(done["results"][1]["transfer"]["reason"], "imported_time");
        let early = pages.ask("POST", "/v1/transfers", None, &at("2019-01-01T00:00:00Z", true)).await;
        assert_eq!(word(&early), (422, "imported_time"));
        let late = pages.ask("POST", "/v1/transfers", None, &at("2040-01-01T00:00:00Z", true)).await;
        assert_eq!(word(&late), (422, "imported_time"));
        let mixed = json!({"transfers": [at("2021-01-01T00:00:00Z", true), single("1")]});
        assert_eq!(pages.ask("POST", "/v1/transfers/batch", None, &mixed).await.0, 400);
        let mut without = single("1");
        without["imported"] = true.into();
        let refused = pages.ask("POST", "/v1/transfers", None, &without).await;
        assert_eq!((refused.0, &refused.1["field"]), (400, &json!("client_time")));
        let refused = pages.ask("POST", "/v1/transfers", None, &at("yesterday", false)).await;
        assert_eq!((refused.0, &refused.1["field"]), (400, &json!("client_time")));
    });
}

/// A transaction's reference is that of each leg, so with unique references the second leg was refused.
#[test]
fn the_legs_of_a_transaction_share_a_unique_reference_that_nobody_else_may_have() {
    with_pages(async |mut pages| {
        let on = json!({"on": [], "unique_references": true});
        assert_eq!(pages.ask("PUT", "/v1/indexes", None, &on).await.0, 200);
        let leg = json!({"debit_account": ALICE, "credit_account": BOB, "amount": "1", "currency": "EUR"});
        let order = json!({"reference": "order-17", "legs": [leg, leg]});
        assert_eq!(pages.post("/v1/transactions", "key-1", &order).await.0, 201);
        let other = pages.post("/v1/transactions", "key-2", &order).await;
        assert_eq!((word(&other), &other.1["field"]), ((422, "reference_taken"), &json!("legs[0]")));
        assert_eq!(pages.balances().await, ["998.00 0.00", "2.00 0.00"]);
    });
}

/// `POST /v1/accounts?dry_run=true` created the account, with its money.
#[test]
fn a_call_without_parameters_refuses_them_instead_of_doing_what_was_to_be_tried() {
    with_pages(async |mut pages| {
        let new = json!({"currency": "EUR", "number": "tried", "initial_balance": "5"});
        let several = json!({"accounts": [new]});
        let account = format!("/v1/accounts/{ALICE}");
        for (method, path, body) in [
            ("POST", "/v1/accounts", &new),
            ("POST", "/v1/accounts/batch", &several),
            ("PATCH", &account[..], &json!({"status": "frozen"})),
            ("PUT", "/v1/currencies/PTS", &json!({"scale": 0})),
            ("PUT", "/v1/indexes", &json!({"on": []})),
        ] {
            let refused = pages.ask(method, &format!("{path}?dry_run=true"), None, body).await;
            let said = (word(&refused), &refused.1["field"]);
            assert_eq!(said, ((400, "invalid_parameter"), &json!("dry_run")), "{method} {path}");
        }
        assert_eq!(pages.get("/v1/accounts/tried").await.0, 404);
        assert_eq!(pages.get(&account).await.1["status"], "active");
        let refused = pages.get("/v1/transfers?limit=-1").await;
        assert_eq!((refused.0, &refused.1["field"]), (400, &json!("limit")));
        assert!(
            refused.1["detail"].as_str().is_some_and(|detail| detail.starts_with("\"-1\": ")),
            "{refused:?}"
        );
    });
}

/// Only reads said that an account was closed by a pending transfer.
#[test]
fn an_account_closed_by_a_pending_transfer_is_answered_as_closed_by_every_call() {
    with_pages(async |mut pages| {
        let new = json!({"id": "0190b5e2-7f2c-7c1e-9d1a-3f5b8c2a4e77", "currency": "EUR", "number": "shut"});
        assert_eq!(pages.ask("POST", "/v1/accounts", None, &new).await.0, 201);
        let closing = json!({"kind": "pending", "debit_account": "shut", "credit_account": BOB,
            "currency": "EUR", "closing": "debit"});
        let (status, closing) = pages.ask("POST", "/v1/transfers", None, &closing).await;
        assert_eq!(status, 201, "{closing}");
        for patch in [json!({"user_data": "y"}), json!({"status": "active"}), json!({"status": "frozen"})] {
            let answer = pages.ask("PATCH", "/v1/accounts/shut", None, &patch).await;
            assert_eq!((answer.0, &answer.1["status"]), (200, &json!("closed")), "{patch}");
        }
        let again = pages.ask("POST", "/v1/accounts", None, &new).await;
        assert_eq!((again.0, &again.1["status"]), (200, &json!("closed")));
        let id = closing["id"].as_str().unwrap_or_default();
        assert_eq!(pages.ask("POST", &format!("/v1/transfers/{id}/void"), None, &json!({})).await.0, 201);
        assert_eq!(pages.get("/v1/accounts/shut").await.1["status"], "frozen");
    });
}

/// A year mistyped gave the present balances without a word; sums and statements took no times at all.
#[test]
fn the_past_is_named_by_revision_or_time_and_the_future_by_neither() {
    with_pages(async |mut pages| {
        assert_eq!(pages.ask("POST", "/v1/transfers", None, &single("10")).await.0, 201);
        let new = json!({"currency": "EUR", "number": "shop:1", "initial_balance": "5"});
        assert_eq!(pages.ask("POST", "/v1/accounts", None, &new).await.0, 201);
        let (past, future) = ("1999-12-31T00:00:00Z", "2999-12-31T00:00:00Z");
        for path in [format!("/v1/accounts/{ALICE}?"), "/v1/balances?prefix=shop:&".into()] {
            let refused = pages.get(&format!("{path}at_time={future}")).await;
            assert_eq!((word(&refused), &refused.1["field"]), ((400, "out_of_range"), &json!("at_time")));
            assert!(
                refused.1["detail"].as_str().is_some_and(|detail| detail.contains("2999")),
                "{refused:?}"
            );
        }
        assert_eq!(
            pages.get(&format!("/v1/balances?prefix=shop:&at_time={past}")).await.1["sums"],
            json!([])
        );
        let statement = format!("/v1/accounts/{ALICE}/statement?");
        let lines = async |pages: &mut super::tests::Pages, times: &str| {
            let page = pages.get(&format!("{statement}{times}")).await;
            page.1["lines"].as_array().map(Vec::len)
        };
        assert_eq!(lines(&mut pages, &format!("from_time={past}&to_time={future}")).await, Some(2));
        assert_eq!(lines(&mut pages, &format!("from_time={future}")).await, Some(0));
        assert_eq!(lines(&mut pages, &format!("to_time={past}")).await, Some(0));
    });
}

#[test]
fn what_is_posted_is_in_the_currency_of_what_was_reserved() {
    with_pages(async |mut pages| {
        let mut pending = single("10");
        pending["kind"] = "pending".into();
        let pending = pages.ask("POST", "/v1/transfers", None, &pending).await;
        let path = format!("/v1/transfers/{}/post", pending.1["id"].as_str().unwrap_or_default());
        let posted = pages.ask("POST", &path, None, &json!({"amount": "4.50"})).await;
        assert_eq!((posted.0, &posted.1["amount"]), (201, &json!("4.50")));
        let unknown = "/v1/transfers/0190b5e2-7f2c-7c1e-9d1a-3f5b8c2a4e99/post";
        let refused = pages.ask("POST", unknown, None, &json!({"amount": "4.50"})).await;
        assert_eq!((refused.0, &refused.1["field"]), (400, &json!("currency")));
    });
}

/// The field `id` was said to be wrong, which the request did not have.
#[test]
fn a_key_that_was_used_for_something_else_is_named() {
    with_pages(async |mut pages| {
        assert_eq!(pages.post("/v1/transfers", "key-1", &single("1")).await.0, 201);
        let refused = pages.post("/v1/transfers", "key-1", &single("2")).await;
        assert_eq!((word(&refused), &refused.1["field"]), ((409, "id_conflict"), &json!("Idempotency-Key")));
    });
}
