//! What programs a machine, under a name.
//!
//! There is no global list that backends enter by themselves: whoever builds a program makes a
//! [`Registry`] and registers what the program shall have.

use std::collections::BTreeMap;
use std::fmt;

use crate::kpng::flags::{FlagError, FlagSpec, FlagValues};
use crate::kpng::sink::{Sink, SinkError};

/// What programs a machine from a node view.
///
/// It is made by its constructor in the [`Registry`], told its settings, set up, and then turned
/// into the [`Sink`] that takes the view.
pub trait Backend: Send {
    /// Its name, as after `--backend`.
    fn name(&self) -> &'static str;

    /// The settings that it knows; none, unless it says otherwise.
    fn flags(&self) -> &'static [FlagSpec] {
        &[]
    }

    /// Takes its settings.
    fn bind_flags(&mut self, _values: &FlagValues) -> Result<(), FlagError> {
        Ok(())
    }

    /// Checks that the machine has what it needs and prepares it, once.
    fn setup(&mut self) -> Result<(), SinkError>;

    /// Forgets what it knows of the machine, so that the next sync observes.
    fn reset(&mut self);

    /// Brings the machine up to date with the last view, now.
    fn sync(&mut self) -> Result<(), SinkError>;

    /// The sink that takes the view and keeps the machine up to date from then on.
    fn sink(self: Box<Self>) -> Box<dyn Sink>;
}

/// Makes a backend.
pub type BackendConstructor = Box<dyn Fn() -> Box<dyn Backend> + Send + Sync>;

/// Why a backend could not be registered or made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The name is taken.
    #[error("a backend named {0:?} is already registered")]
    Duplicate(&'static str),
    /// No such backend in this program.
    #[error("no backend named {name:?}; this program has: {}", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
}

/// The backends that a program has, by name.
#[derive(Default)]
pub struct Registry {
    constructors: BTreeMap<&'static str, BackendConstructor>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.constructors.keys()).finish()
    }
}

impl Registry {
    /// A registry without backends.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a backend.
    pub fn register(
        &mut self,
        name: &'static str,
        constructor: impl Fn() -> Box<dyn Backend> + Send + Sync + 'static,
    ) -> Result<(), RegistryError> {
        if self.constructors.contains_key(name) {
            return Err(RegistryError::Duplicate(name));
        }
        self.constructors.insert(name, Box::new(constructor));
        Ok(())
    }

    /// A new backend of this name.
    pub fn get(&self, name: &str) -> Result<Box<dyn Backend>, RegistryError> {
        match self.constructors.get(name) {
            Some(constructor) => Ok(constructor()),
            None => {
                Err(RegistryError::Unknown { name: name.to_owned(), known: self.names().collect() })
            }
        }
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.constructors.keys().copied()
    }
}

#[cfg(test)]
mod tests;
