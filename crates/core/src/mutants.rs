//! Defects to order, which prove that the simulator finds them: each takes out one thing that a promise of
//! docs/reliability.md needs. That page has the list, and the seed that finds each.
//!
//! Builds without the feature `mutants` have none of them: [`is`] is a constant there.

/// Whether this process is to have the defect `name`, by the environment variable `QUOIN_MUTANT`.
#[cfg(feature = "mutants")]
pub fn is(name: &str) -> bool {
    static ORDERED: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| std::env::var("QUOIN_MUTANT").unwrap_or_default());
    *ORDERED == name
}

/// Never.
#[cfg(not(feature = "mutants"))]
#[inline]
pub const fn is(_: &str) -> bool {
    false
}
