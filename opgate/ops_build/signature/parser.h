// The parser of signatures.
//
// Grammar (EBNF; white space is free between tokens):
//
//   sig    = [ "<" tvar { "," tvar } ">" ] Name "(" [ in { "," in } ] [ ";" attr { "," attr } ] ")"
//            "->" "(" out { "," out } ")" ;
//   tvar   = Upper ":" dtype { "|" dtype } ;
//   dtype  = "f16"|"bf16"|"f32"|"f64"|"i8"|"u8"|"i32"|"i64"|"bool"|"str" ;
//   in     = name [ "?" | "*" ] ":" [ "const" ] (dtype|Upper) "[" [ idim { "," idim } ] "]" ;
//   idim   = "..." | name [ "=" expr ] | expr ;
//   out    = name [ "?" ] ":" (dtype|Upper) "[" [ odim { "," odim } ] "]" ;
//   odim   = "..." | expr | name "<=" expr ;
//   expr   = term { ("+"|"-") term } ;
//   term   = fac { ("*"|"/"|"%") fac } ;
//   fac    = int | name | "(" expr ")" | ("min"|"max"|"ceildiv") "(" expr "," expr ")" ;
//   attr   = name ":" atype [ "=" lit ] ;
//   atype  = ("int"|"float"|"bool"|"str") [ "[" [ int ] "]" ] | "{" ident { "|" ident } "}" ;
//   lit    = number | "true" | "false" | string | ident | "[" [ lit { "," lit } ] "]" ;
//
// docs/signatures.md says what the parts mean.
#pragma once

#include <string_view>

#include "signature.h"

namespace opgate {

/// Parses a signature and checks it. Throws SignatureError (lexer.h).
Signature parse_signature(std::string_view text);

}  // namespace opgate
