//! The `cache` suite: the public HTTP cache test-suite (npm `http-cache-tests`) against our cache.
//!
//! The suite has three kinds of tests: what a cache must do, what an optimal one does, and questions that
//! have no right answer. Those of the first two kinds that pass are counted, and must not become fewer.
//! docs/http-cache.md says of every test that fails why it does.

use anyhow::{Context, Result, bail};

use crate::exec::{cargo, program, root, target_directory};
use crate::install;

/// Kinds of tests, and how many of each have to pass.
const FLOORS: [(&str, u32); 2] = [("required", 149), ("optimal", 88)];

/// Builds, runs and counts; whether enough tests pass.
pub(crate) fn suite() -> Result<bool> {
    let package = install::cache_tests()?;
    if !cargo(["build", "-p", "telaio-http-proxy", "--example", "cache_proxy"]).run()? {
        return Ok(false);
    }
    let proxy = target_directory().join("debug/examples/cache_proxy");
    let driver = root().join("xtask/cache-tests/run.mjs");
    let step = program("node").args(["--no-warnings", &driver.to_string_lossy()]);
    let (ended, output) =
        step.args([package.to_string_lossy(), proxy.to_string_lossy()]).run_and_keep_output()?;
    print!("{output}");
    Ok(ended && reaches_floors(&output)?)
}

/// Whether as many tests passed as have to.
fn reaches_floors(output: &str) -> Result<bool> {
    let mut enough = true;
    for (kind, floor) in FLOORS {
        let (passed, total) = count(output, kind)?;
        println!("{kind}: {passed} of {total} passed; at least {floor} have to");
        enough &= passed >= floor;
    }
    Ok(enough)
}

/// How many tests of a kind passed, and how many there are.
fn count(output: &str, kind: &str) -> Result<(u32, u32)> {
    let line = output.lines().find_map(|line| line.strip_prefix(&format!("passed {kind} ")));
    let numbers =
        line.with_context(|| format!("the suite does not say how many {kind} tests passed"))?;
    match numbers.split_once(' ').map(|(passed, total)| (passed.parse(), total.parse())) {
        Some((Ok(passed), Ok(total))) => Ok((passed, total)),
        _ => bail!("the suite counts {numbers:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(required: u32, optimal: u32) -> String {
        format!(
            "required a Assertion: b\npassed check 1 2\npassed optimal {optimal} 95\npassed required {required} 165\n"
        )
    }

    #[test]
    fn floors_are_reached_or_not() {
        let [(_, required), (_, optimal)] = FLOORS;
        assert!(reaches_floors(&output(required, optimal)).unwrap());
        assert!(reaches_floors(&output(required + 1, optimal)).unwrap());
        assert!(!reaches_floors(&output(required - 1, optimal)).unwrap());
        assert!(!reaches_floors(&output(required, optimal - 1)).unwrap());
        assert!(reaches_floors("").is_err());
        assert!(reaches_floors("passed required many 9").is_err());
    }
}
