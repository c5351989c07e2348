//! Where a client is in the feed: a text with which it goes on, and which only this history takes.
//!
//! `REVISION.POSITION@CLUSTER.TIME`, `REVISION.aNUMBER@CLUSTER.TIME` of an account, or `REVISION@CLUSTER.TIME` once all of the revision was sent: the cluster's id, and
//! when the newest part of the journal up to there was recorded, both in hexadecimal. A cluster that was restored has
//! another id. One that was made anew with the same settings has the same, but not the same record at the same time;
//! nor has a folder that was put back and went on differently. A client that went on there would take one history for
//! the continuation of another.
//!
//! What comes after the `@` may be missing, as in tokens of earlier versions: then only the revision is checked.

use super::book::Book;
use super::past::check_past;
use crate::consistency::view_reaching;
use crate::error::Error;
use quoin_core::ledger;
use quoin_core::{Revision, Stamp};
use std::fmt;
use std::str::FromStr;

/// A place in the feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// The last revision that was seen.
    pub(crate) revision: Revision,
    /// The last place in it; `None` if all of it was seen.
    pub(crate) place: Option<Place>,
    pub(crate) origin: Option<Origin>,
}

/// A place among the events of a revision: first come accounts, then all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// An account, by its number among those of the revision.
    Account(u32),
    /// A transfer, by its position, or a currency.
    Other(u32),
}

impl Place {
    /// Where transfers begin in a revision that has accounts, too. Earlier versions numbered accounts as transfers.
    const AFTER_ACCOUNTS: u32 = 64;

    /// Whether a client that has seen `seen` of the same revision has seen this.
    pub(crate) fn is_seen(self, seen: Self) -> bool {
        match (self, seen) {
            (Self::Account(place), Self::Account(seen)) | (Self::Other(place), Self::Other(seen)) => {
                place <= seen
            }
            (Self::Account(place), Self::Other(seen)) => place <= seen || seen >= Self::AFTER_ACCOUNTS,
            (Self::Other(_), Self::Account(_)) => false,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Account(place) => write!(f, "a{place}"),
            Self::Other(place) => write!(f, "{place}"),
        }
    }
}

/// The history in which a place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) cluster: u64,
    /// When the newest part of the journal up to the place was recorded; 0 if there is none.
    pub(crate) stamp: Stamp,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.revision)?;
        if let Some(place) = self.place {
            write!(f, ".{place}")?;
        }
        match self.origin {
            Some(Origin { cluster, stamp }) => write!(f, "@{cluster:016x}.{:x}", stamp.0),
            None => Ok(()),
        }
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).ok_or_else(|| {
            let shown: String = text.chars().take(64).collect();
            format!("{shown:?} is not the id of an event, as 17.0@6f1d2c3b4a596877.19e8f7a6b5c")
        })
    }
}

fn parse(text: &str) -> Option<Token> {
    let (place, origin) = match text.split_once('@') {
        Some((place, origin)) => (place, Some(origin.split_once('.')?)),
        None => (text, None),
    };
    let (revision, place) = match place.split_once('.') {
        Some((revision, place)) => match place.strip_prefix('a') {
            Some(account) => (revision, Some(Place::Account(account.parse().ok()?))),
            None => (revision, Some(Place::Other(place.parse().ok()?))),
        },
        None => (place, None),
    };
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    let origin = match origin {
        Some((cluster, stamp)) => {
            Some(Origin { cluster: hexadecimal(cluster)?, stamp: Stamp(hexadecimal(stamp)?) })
        }
        None => None,
    };
    Some(Token { revision: Revision(revision.parse().ok()?), place, origin })
}

impl Token {
    /// Whether a client that is here has seen what is at a place of a revision.
    pub(crate) fn covers(&self, at: (Revision, Place)) -> bool {
        at.0 < self.revision || at.0 == self.revision && self.place.is_none_or(|seen| at.1.is_seen(seen))
    }

    /// Checks that a client may go on after this place.
    ///
    /// # Errors
    /// It is in the future, or in another history; or the newest revision cannot be confirmed.
    pub(crate) async fn check(&self, book: &Book, field: &str) -> Result<(), Error> {
        let own = book.engine().cluster();
        if let Some(Origin { cluster, .. }) = self.origin
            && cluster != own
        {
            return Err(other_history(field, format_args!("cluster {cluster:016x}, and this is {own:016x}")));
        }
        let view = view_reaching(book.engine(), self.revision).await?;
        check_past(view.progress(), self.revision, field)?;
        let Some(Origin { stamp, .. }) = self.origin else { return Ok(()) };
        let here = ledger::recorded_at(view.view(), self.revision)?;
        if here == stamp {
            return Ok(());
        }
        let revision = self.revision;
        let what = format_args!(
            "another history: revision {revision} is of {here} ms here, and of {stamp} ms there"
        );
        Err(other_history(field, what))
    }
}

fn other_history(field: &str, what: impl fmt::Display) -> Error {
    Error::precondition(format_args!(
        "{field}: it is of {what}. It was restored or made anew: compare what you have, and begin from a revision"
    ))
}

/// Checks that a feed may begin with the revision `first`: that it is at most the next one.
///
/// # Errors
/// It is later, so that the feed would wait for what may never come; or the newest revision cannot be confirmed.
pub(crate) async fn check_first(book: &Book, first: Revision, field: &str) -> Result<(), Error> {
    let Some(before) = first.0.checked_sub(1) else { return Ok(()) };
    let view = view_reaching(book.engine(), Revision(before)).await?;
    if before <= view.progress().revision.0 { Ok(()) } else { check_past(view.progress(), first, field) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_pinned_and_those_of_the_version_before_are_read() {
        let origin = Some(Origin { cluster: 0x6f1d, stamp: Stamp(0x19e) });
        let token = |revision, place, origin| Token { revision: Revision(revision), place, origin };
        for (text, token) in [
            ("17.3@0000000000006f1d.19e", token(17, Some(Place::Other(3)), origin)),
            ("17.a3@0000000000006f1d.19e", token(17, Some(Place::Account(3)), origin)),
            ("17@0000000000006f1d.19e", token(17, None, origin)),
            ("17.3", token(17, Some(Place::Other(3)), None)),
            ("17", token(17, None, None)),
        ] {
            assert_eq!((token.to_string().as_str(), text.parse()), (text, Ok(token)));
        }
        for bad in [
            "",
            "@",
            "a",
            "1.",
            ".1",
            "1.2.3",
            "1@",
            "1@6f1d",
            "1@6f1d.",
            "1@g.1",
            "-1",
            "1.2@1.2.3",
            "1.a",
            "1.aa",
            "1.b2",
        ] {
            assert!(bad.parse::<Token>().is_err(), "{bad:?}");
        }
    }
}
