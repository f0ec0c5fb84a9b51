use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

#[tokio::test]
async fn what_was_read_comes_again_before_the_rest() {
    let (ours, mut theirs) = tokio::io::duplex(64);
    theirs.write_all(b"world").await.unwrap();
    drop(theirs);
    let mut rewound = Rewind::with(Bytes::from_static(b"hello "), ours);
    let mut first = [0; 3];
    rewound.read_exact(&mut first).await.unwrap();
    let mut rest = String::new();
    rewound.read_to_string(&mut rest).await.unwrap();
    assert_eq!((&first, rest.as_str()), (b"hel", "lo world"));
}
