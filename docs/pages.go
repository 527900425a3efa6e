// Package docs holds the pages that `kubectl pitcrew explain` looks things up in. Its tests check all pages.
package docs

import _ "embed"

// Alerting is the page on alerts and metrics, in Markdown.
//
//go:embed alerting.md
var Alerting string

// Troubleshooting is the page on what to do when something is wrong, and on what the words of the output mean, in Markdown.
//
//go:embed troubleshooting.md
var Troubleshooting string
