// Package docs holds the pages that `kubectl pitcrew explain` looks things up in. Its tests check all pages.
package docs

import _ "embed"

// Alerting is the page on alerts and the dashboard, in Markdown.
//
//go:embed alerting.md
var Alerting string

// Metrics is the page on the metrics of the remediator, in Markdown.
//
//go:embed metrics.md
var Metrics string

// Words is the page on what the words of the output mean, in Markdown.
//
//go:embed words.md
var Words string
