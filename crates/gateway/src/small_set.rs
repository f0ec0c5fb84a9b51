//! A set that nearly always has one element or two: a tree would take room for eleven.

/// The elements in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmallSet<T>(Vec<T>);

impl<T> Default for SmallSet<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Ord> SmallSet<T> {
    /// Adds an element; whether it was not there.
    pub fn insert(&mut self, element: T) -> bool {
        match self.0.binary_search(&element) {
            Ok(_) => false,
            Err(place) => {
                // A list grows to four by itself, which most never need.
                if self.0.len() < 4 {
                    self.0.reserve_exact(1);
                }
                self.0.insert(place, element);
                true
            }
        }
    }

    /// Removes an element; whether it was there.
    pub fn remove(&mut self, element: &T) -> bool {
        self.0.binary_search(element).map(|place| self.0.remove(place)).is_ok()
    }

    /// Whether there is such an element.
    pub fn contains(&self, element: &T) -> bool {
        self.0.binary_search(element).is_ok()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The elements in order.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// Those that the other has not.
    pub fn difference<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a T> {
        self.0.iter().filter(|element| !other.contains(element))
    }
}

impl<'a, T> IntoIterator for &'a SmallSet<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_there_once_and_in_order() {
        let mut set = SmallSet::default();
        assert!(set.insert(3) && set.insert(1) && !set.insert(3));
        assert_eq!(set.iter().copied().collect::<Vec<_>>(), [1, 3]);
        let mut other = SmallSet::default();
        other.insert(1);
        assert_eq!(set.difference(&other).collect::<Vec<_>>(), [&3]);
        assert!(set.remove(&1) && !set.remove(&1) && set.contains(&3) && !set.is_empty());
    }
}
