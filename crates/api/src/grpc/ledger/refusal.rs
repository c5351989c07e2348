//! The only place where refusals of the ledger become gRPC statuses. Those of HTTP name a field too:
//! `http/ledger/refusal.rs`.

use crate::error::{Error, Kind};
use quoin_core::ledger::AccountCode;

impl From<AccountCode> for Error {
    fn from(code: AccountCode) -> Self {
        let kind = match code {
            AccountCode::Unknown => Kind::NotFound,
            AccountCode::IdConflict | AccountCode::NumberTaken | AccountCode::CurrencyExists => {
                Kind::AlreadyExists
            }
            AccountCode::Closed
            | AccountCode::NotEmpty
            | AccountCode::BelowLimit
            | AccountCode::AboveMaximum
            | AccountCode::LinkedFailed
            | AccountCode::OpeningRefused(_) => Kind::FailedPrecondition,
            AccountCode::Changed => Kind::Aborted,
            _ => Kind::InvalidArgument,
        };
        Self::Refused(kind, code.to_string())
    }
}
