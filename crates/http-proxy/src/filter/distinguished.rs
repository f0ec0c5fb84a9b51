//! Names of subjects and issuers as nginx writes them, so that what compared them there does so here:
//! RFC 2253, the last part first, `CN=ann,OU=Sales,O=Shop`.

use std::fmt::Write as _;

use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// A name as RFC 2253 writes it.
pub(super) fn distinguished_name(name: &X509Name<'_>) -> String {
    let mut out = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for (place, part) in parts.into_iter().rev().enumerate() {
        out.push_str(if place > 0 { "," } else { "" });
        for (place, attribute) in part.iter().enumerate() {
            out.push_str(if place > 0 { "+" } else { "" });
            write_attribute(attribute, &mut out);
        }
    }
    out
}

fn write_attribute(attribute: &AttributeTypeAndValue<'_>, out: &mut String) {
    match oid2abbrev(attribute.attr_type(), oid_registry()) {
        Ok(short) => out.push_str(short),
        Err(_) => out.push_str(&attribute.attr_type().to_id_string()),
    }
    out.push('=');
    if let Ok(text) = attribute.as_str() {
        return escape(text, out);
    }
    // What is no text is told in its bytes.
    out.push('#');
    for byte in attribute.as_slice() {
        let _ = write!(out, "{byte:02X}");
    }
}

/// Escapes what would look like another part, and what is not ASCII.
fn escape(text: &str, out: &mut String) {
    let last = text.len().saturating_sub(1);
    for (place, byte) in text.bytes().enumerate() {
        let at_end = place == 0 || place == last;
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => {
                out.push('\\');
                out.push(char::from(byte));
            }
            b'#' if place == 0 => out.push_str("\\#"),
            b' ' if at_end => out.push_str("\\ "),
            0x20..0x7f => out.push(char::from(byte)),
            // Writing to a String cannot fail.
            _ => drop(write!(out, "\\{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};
    use x509_parser::prelude::{FromDer, X509Certificate};

    use super::*;

    fn named(parts: &[(DnType, &str)]) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, text) in parts {
            params.distinguished_name.push(kind.clone(), *text);
        }
        let made = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let (_, read) = X509Certificate::from_der(made.der()).unwrap();
        distinguished_name(read.subject())
    }

    #[test]
    fn the_last_part_comes_first_and_nothing_looks_like_another_part() {
        let shop = (DnType::OrganizationName, "Shop");
        let unit = (DnType::OrganizationalUnitName, "Sales");
        let ann = (DnType::CommonName, "ann");
        assert_eq!(named(&[shop.clone(), unit, ann]), "CN=ann,OU=Sales,O=Shop");
        for (text, wanted) in [
            ("eve,CN=ann", "CN=eve\\,CN=ann,O=Shop"),
            (" #a+b;\"<>\\ ", "CN=\\ #a\\+b\\;\\\"\\<\\>\\\\\\ ,O=Shop"),
            ("#a", "CN=\\#a,O=Shop"),
            ("\u{fc}", "CN=\\C3\\BC,O=Shop"),
            ("a\r\nb", "CN=a\\0D\\0Ab,O=Shop"),
        ] {
            assert_eq!(named(&[shop.clone(), (DnType::CommonName, text)]), wanted, "{text}");
        }
    }
}
