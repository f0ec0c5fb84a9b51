//! What each file declares, and which declaration of an object stands.
//!
//! What always holds: of several declarations of one object the first by path, then by line, stands;
//! a file that once was read without a fault keeps what it declared then until it is again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use telaio_model::{Object, ObjectRef};

use crate::Problem;
use crate::control_plane::{Change, Declared, Origin};
use crate::manifest::{FileContent, FoundObject};

/// What a file declares.
#[derive(Debug, Default)]
struct FileState {
    objects: Vec<FoundObject>,
    /// It has been read without a fault.
    was_good: bool,
}

/// One declaration of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Declaration {
    file: Arc<Path>,
    /// Which of the file's objects.
    index: usize,
}

/// The declarations of all files.
#[derive(Debug, Default)]
pub(super) struct Store {
    /// Never walked through, so it need not be in order; comparing paths is slow.
    files: HashMap<Arc<Path>, FileState>,
    /// Who declares an object, the one that stands first. Nearly always one.
    declarations: BTreeMap<ObjectRef, Vec<Declaration>>,
    /// Objects that several declare, with the files whose declaration does not stand.
    duplicates: BTreeMap<ObjectRef, BTreeSet<Arc<Path>>>,
}

/// What came of new file contents.
#[derive(Debug, Default)]
pub(super) struct StoreChanges {
    /// For the control plane.
    pub(super) changes: Vec<Change>,
    /// Declarations of which there is something new to say: what is wrong with them beside others.
    pub(super) duplicates: BTreeMap<(Arc<Path>, ObjectRef), Vec<Problem>>,
}

/// Whether two declarations mean the same. Where they stand matters only for services, of which the
/// first keeps an address that several write.
fn is_same(before: &Declared, after: &Declared) -> bool {
    if matches!(after.object, Object::Service(_)) {
        before == after
    } else {
        before.object == after.object
    }
}

impl Store {
    /// Takes what files hold now; `None` for one that is no more.
    pub(super) fn update(
        &mut self,
        contents: impl IntoIterator<Item = (Arc<Path>, Option<FileContent>)>,
    ) -> StoreChanges {
        let first = self.declarations.is_empty();
        let mut before: BTreeMap<ObjectRef, Option<Declared>> = BTreeMap::new();
        for (file, content) in contents {
            self.replace(&file, content, &mut before);
        }
        if first {
            // Built in one go the map has no room to spare; filled one by one it has nearly as much as
            // it holds.
            self.declarations = std::mem::take(&mut self.declarations).into_iter().collect();
        }
        let mut changes = Vec::new();
        let mut duplicates = BTreeMap::new();
        for (object, before) in before {
            self.find_duplicates(&object, &mut duplicates);
            match (before, self.standing(&object)) {
                (None, None) => {}
                (Some(before), Some(after)) if is_same(&before, &after) => {}
                (_, Some(after)) => changes.push(Change::Set(after)),
                (Some(_), None) => changes.push(Change::Delete(object)),
            }
        }
        StoreChanges { changes, duplicates }
    }

    /// Replaces what one file declares, noting in `before` what stood of each object touched.
    fn replace(
        &mut self,
        file: &Arc<Path>,
        content: Option<FileContent>,
        before: &mut BTreeMap<ObjectRef, Option<Declared>>,
    ) {
        let was_good = self.files.get(file).is_some_and(|state| state.was_good);
        let state = match content {
            None => None,
            Some(content) => {
                let is_good = content.problems.is_empty();
                if was_good && !is_good {
                    return;
                }
                let mut objects = content.objects;
                // Kept as long as the file, and most files have few.
                objects.shrink_to_fit();
                Some(FileState { objects, was_good: is_good })
            }
        };
        let old = self.files.get(file).map(|state| state.objects.as_slice()).unwrap_or_default();
        let new = state.as_ref().map(|state| state.objects.as_slice()).unwrap_or_default();
        let touched: BTreeSet<ObjectRef> =
            old.iter().chain(new).map(|found| found.object.object_ref()).collect();
        for object in &touched {
            if !before.contains_key(object) {
                before.insert(object.clone(), self.standing(object));
            }
            if let Some(declarations) = self.declarations.get_mut(object) {
                declarations.retain(|declaration| declaration.file != *file);
                if declarations.is_empty() {
                    self.declarations.remove(object);
                }
            }
        }
        for (index, found) in new.iter().enumerate() {
            let declaration = Declaration { file: file.clone(), index };
            let declarations = self
                .declarations
                .entry(found.object.object_ref())
                .or_insert_with(|| Vec::with_capacity(1));
            if let Err(at) = declarations.binary_search(&declaration) {
                declarations.insert(at, declaration);
            }
        }
        match state {
            Some(state) => self.files.insert(file.clone(), state),
            None => self.files.remove(file),
        };
    }

    fn found(&self, declaration: &Declaration) -> Option<&FoundObject> {
        self.files.get(&declaration.file)?.objects.get(declaration.index)
    }

    /// The declaration of an object that stands.
    fn standing(&self, object: &ObjectRef) -> Option<Declared> {
        let declaration = self.declarations.get(object)?.first()?;
        let found = self.found(declaration)?;
        Some(Declared {
            object: found.object.clone(),
            allocation: found.allocation.clone(),
            origin: Origin { file: declaration.file.clone(), line: found.line },
        })
    }

    /// What is wrong with the declarations of an object that do not stand; nothing any more with
    /// those that did not stand before.
    fn find_duplicates(
        &mut self,
        object: &ObjectRef,
        problems: &mut BTreeMap<(Arc<Path>, ObjectRef), Vec<Problem>>,
    ) {
        for file in self.duplicates.remove(object).into_iter().flatten() {
            problems.insert((file, object.clone()), Vec::new());
        }
        let declarations = self.declarations.get(object).map(Vec::as_slice).unwrap_or_default();
        let [first, others @ ..] = declarations else { return };
        if others.is_empty() {
            return;
        }
        let place = |declaration: &Declaration| {
            let line = self.found(declaration).map_or(1, |found| found.line);
            Origin { file: declaration.file.clone(), line }.to_string()
        };
        for other in others {
            let problem = Problem {
                origin: place(other),
                object: Some(object.to_string()),
                field: Some("metadata.name".to_owned()),
                message: format!("is declared in {} already; remove one of the two", place(first)),
            };
            problems.entry((other.file.clone(), object.clone())).or_default().push(problem);
        }
        let files = others.iter().map(|other| other.file.clone()).collect();
        self.duplicates.insert(object.clone(), files);
    }
}
