package policy

import (
	"errors"
	"maps"
	"net/url"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	defaultWebhookTimeout = 10 * time.Second
	maxWebhookTimeout     = time.Minute
)

// Webhook is told over HTTP what became of a node.
type Webhook struct {
	Name string
	// URL takes the POST. It may hold a secret and is never logged.
	URL string
	// SecretFile holds the key of the signature. It is read for every delivery, so that it can be changed.
	SecretFile string
	// CAFile, when set, holds the PEM certificates that the server's must lead to, in place of the system's.
	CAFile string
	// Events are what it is told, of [WebhookEvents].
	Events []string
	// Timeout bounds one attempt.
	Timeout time.Duration
}

// WebhookEvents are what a webhook can be told: the reasons of the Events of a quarantine that is written.
var WebhookEvents = []string{"NodeQuarantined", "QuarantineUpgraded", "TaintRestored", "NodeReleased", "ReleaseByHand"}

// Webhook finds a webhook by its name.
func (p *Policy) Webhook(name string) (Webhook, bool) {
	i := slices.IndexFunc(p.Webhooks, func(w Webhook) bool { return w.Name == name })
	if i < 0 {
		return Webhook{}, false
	}
	return p.Webhooks[i], true
}

type webhook struct {
	URL        string   `yaml:"url"`
	SecretFile string   `yaml:"secretFile"`
	CAFile     string   `yaml:"caFile"`
	Events     []string `yaml:"events"`
	Timeout    string   `yaml:"timeout"`
}

func (c *checker) webhooks(at *field.Path, hooks map[string]webhook) []Webhook {
	var out []Webhook
	for _, name := range slices.Sorted(maps.Keys(hooks)) {
		out = append(out, c.webhook(at.Key(name), name, hooks[name]))
	}
	return out
}

func (c *checker) webhook(at *field.Path, name string, w webhook) Webhook {
	c.all(at, name, validation.IsDNS1123Label(name))
	if err := checkURL(w.URL); err != nil {
		c.invalid(at.Child("url"), "(not shown)", err.Error())
	}
	if w.SecretFile == "" {
		c.errs = append(c.errs, field.Required(at.Child("secretFile"), "a file with the key that signs what is sent"))
	}
	for i, event := range w.Events {
		if !slices.Contains(WebhookEvents, event) {
			c.errs = append(c.errs, field.NotSupported(at.Child("events").Index(i), event, WebhookEvents))
		}
	}
	out := Webhook{
		Name: name, URL: w.URL, SecretFile: w.SecretFile, CAFile: w.CAFile, Events: w.Events,
		Timeout: c.duration(at.Child("timeout"), w.Timeout, defaultWebhookTimeout),
	}
	if len(out.Events) == 0 {
		out.Events = WebhookEvents
	}
	if out.Timeout == 0 || out.Timeout > maxWebhookTimeout {
		c.invalid(at.Child("timeout"), w.Timeout, "must be longer than 0s and at most "+maxWebhookTimeout.String())
	}
	return out
}

// checkURL says what is wrong with a URL, and not what it is.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return errors.New("must be an http or https URL with a host")
	}
	return nil
}
