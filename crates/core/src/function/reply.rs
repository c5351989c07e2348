//! Answers to the function face's commands.

/// The answer to a command.
pub type Reply = Result<(), Refusal>;

/// Why a command was not done. The texts are Redis's where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A library of this name exists.
    #[error("Library '{0}' already exists")]
    LibraryExists(String),
    /// A function of this name exists, in another library.
    #[error("Function {0} already exists")]
    FunctionExists(String),
    /// It does not exist.
    #[error("Library not found")]
    LibraryNotFound,
    /// There is no room for it.
    #[error("libraries would take more than {max} {what}; delete some with FUNCTION DELETE")]
    TooMuch {
        /// Of what there would be too much.
        what: &'static str,
        /// Maximum.
        max: usize,
    },
    /// The bytes are not a command of this version, or what they hold is no library.
    #[error("malformed function command")]
    Malformed,
}
