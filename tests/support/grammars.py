"""Grammars that several tests use."""

# Any JSON object, with at most one blank or line end and some indentation wherever there may be space.
JSON_OBJECT = r"""
root   ::= object
object ::= "{" space ( string ":" space value ( "," space string ":" space value )* )? "}" space
array  ::= "[" space ( value ( "," space value )* )? "]" space
value  ::= object | array | string | number | ("true" | "false" | "null") space
string ::= "\"" ( [^"\\\x00-\x1F\x7F] | "\\" ( ["\\bfnrt] | "u" [0-9a-fA-F]{4} ) ){0,40} "\"" space
number ::= "-"? ( "0" | [1-9] [0-9]{0,15} ) ( "." [0-9]{1,9} )? ( [eE] [-+]? [0-9]{1,2} )? space
space  ::= ( " " | "\n" [ \t]{0,8} )?
"""
