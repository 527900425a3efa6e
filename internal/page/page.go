// Package page is the style of every HTML page and picture that the project makes.
package page

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
)

// Style is the common style sheet. Its first part, the palette, holds all colours of the project's pages and pictures.
//
//go:embed style.css
var Style string

// Policy is the Content-Security-Policy of a page that has one style element with this content and loads nothing else: no
// script, no image, no font, no other style.
func Policy(style template.CSS) string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'"
}
