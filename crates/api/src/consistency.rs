//! How fresh a read must be: the one place where a wire's words for it become the engine's.
//!
//! The default is the same on every wire: linearizable. Only a client that says so reads the state of the
//! replica that it asks, with `quoin.v1.Consistency`, HTTP's parameter `local`, or Redis's READONLY. etcd's
//! own API keeps etcd's words: `serializable`, and in MemberList `linearizable`.

use crate::commands::read;
use crate::error::Error;
use quoin_core::Revision;
use quoin_engine::{Consistency, Engine, ReadView};
use quoin_proto::quoin::v1 as pb;
use quoin_proto::quoin::v1::consistency::Level;

/// What a request of `quoin.*.v1` asks for.
pub(crate) fn of(asked: Option<&pb::Consistency>) -> Consistency {
    match asked.and_then(|asked| asked.level.as_ref()) {
        Some(Level::Local(local)) => {
            Consistency::Local { max_lag_entries: local.lag_entries_max, max_lag_ms: local.lag_ms_max }
        }
        Some(Level::Linearizable(_)) | None => Consistency::Linearizable,
    }
}

/// A view as fresh as a request of `quoin.*.v1` asks for.
///
/// # Errors
/// See [`quoin_engine::ReadError`].
pub(crate) async fn view(engine: &Engine, asked: Option<&pb::Consistency>) -> Result<ReadView, Error> {
    read(engine, of(asked)).await
}

/// A view that has `revision` if the cluster has it: this replica may not have applied it yet.
///
/// # Errors
/// It has not, and what the cluster has cannot be confirmed: see [`quoin_engine::ReadError`].
pub(crate) async fn view_reaching(engine: &Engine, revision: Revision) -> Result<ReadView, Error> {
    let here = engine.latest();
    if revision <= here.progress().revision {
        Ok(here)
    } else {
        read(engine, Consistency::Linearizable).await
    }
}

/// What a wire asks for that has a flag and no bounds on lag.
pub(crate) fn of_flag(local: bool) -> Consistency {
    if local { Consistency::ANY } else { Consistency::Linearizable }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn a_read_is_linearizable_unless_it_says_otherwise() {
        assert_eq!(of(None), Consistency::Linearizable);
        assert_eq!(of(Some(&pb::Consistency::default())), Consistency::Linearizable);
        // The value of the flag does not matter, as the text of the API says.
        for value in [true, false] {
            let asked = pb::Consistency { level: Some(Level::Linearizable(value)) };
            assert_eq!(of(Some(&asked)), Consistency::Linearizable);
        }
        assert_eq!(of_flag(false), Consistency::Linearizable);
    }

    #[test]
    fn bounds_on_lag_are_taken_over() {
        let local = |lag_entries_max, lag_ms_max| {
            of(Some(&pb::Consistency {
                level: Some(Level::Local(pb::Local { lag_entries_max, lag_ms_max })),
            }))
        };
        assert_eq!(local(None, None), Consistency::ANY);
        assert_eq!(of_flag(true), Consistency::ANY);
        let bounded = Consistency::Local { max_lag_entries: Some(0), max_lag_ms: Some(1500) };
        assert_eq!(local(Some(0), Some(1500)), bounded);
    }

    #[test]
    fn the_bytes_of_a_consistency_are_pinned() {
        let local = pb::Local { lag_entries_max: Some(3), lag_ms_max: Some(200) };
        let bytes = pb::Consistency { level: Some(Level::Local(local)) }.encode_to_vec();
        assert_eq!(bytes, [0x12, 5, 0x08, 3, 0x10, 0xc8, 0x01]);
        let bytes = pb::Consistency { level: Some(Level::Linearizable(true)) }.encode_to_vec();
        assert_eq!(bytes, [0x08, 1]);
    }
}
