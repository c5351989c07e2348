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
