package policy

import (
	"errors"
	"net/url"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pitcrew-dev/pitcrew/remediator/policy/strict"
)

const defaultWebhookTimeout = 10 * time.Second

// Webhook receives a notification over HTTP when a quarantine changes. docs/webhooks.md describes the requests, which are
// signed as Standard Webhooks are.
//
//	spec:
//	  webhooks:
//	    pager:
//	      url: https://pager.example.com/pitcrew
//	      secretFile: /etc/pitcrew/webhooks/pager
//	      events: [NodeQuarantined, NodeReleased]
//	      timeout: 5s
type Webhook struct {
	// Name is the key of the webhook in the file.
	Name string `yaml:"-"`
	// url receives the POST requests. Its scheme is https, or with allowHTTP also http. It may contain a secret and is never logged.
	URL string `yaml:"url" required:""`
	// allowHTTP allows an http URL. Everyone on the way can read the requests and the URL then; they cannot forge requests, which
	// are signed.
	AllowHTTP bool `yaml:"allowHTTP"`
	// secretFile is the path of the file with the key of the signature: whsec_ and base64, or the key itself. It is read for
	// every request, so that the key can be changed.
	SecretFile string `yaml:"secretFile" unit:"file path" required:"a file with the key that signs the requests"`
	// caFile is the path of a file with PEM certificates that the server's certificate must lead to, in place of those of the
	// system.
	CAFile string `yaml:"caFile" unit:"file path"`
	// events are the reasons of the Events that are sent.
	Events []string `yaml:"events" unit:"Event reason" values:"NodeQuarantined QuarantineUpgraded TaintRestored NodeReleased ReleaseByHand"`
	// timeout bounds one attempt.
	Timeout time.Duration `yaml:"timeout" above:"0s" max:"1m"`
}

// WebhookEvents are the values of [Webhook.Events]: the reasons of the Events about a quarantine that is written.
var WebhookEvents = []string{"NodeQuarantined", "QuarantineUpgraded", "TaintRestored", "NodeReleased", "ReleaseByHand"}

// Webhook finds a webhook by its name.
func (p *Policy) Webhook(name string) (Webhook, bool) {
	i := slices.IndexFunc(p.Webhooks, func(w Webhook) bool { return w.Name == name })
	if i < 0 {
		return Webhook{}, false
	}
	return p.Webhooks[i], true
}

func (w *Webhook) SetName(name string) { w.Name = name }

func (w *Webhook) SetDefaults() { w.Timeout = defaultWebhookTimeout }

func (w *Webhook) complete(d *strict.Decoder, at *field.Path) {
	d.InvalidFor(at, w.Name, validation.IsDNS1123Label(w.Name))
	if err := checkURL(w.URL, w.AllowHTTP); err != nil {
		d.Invalid(at.Child("url"), "(not shown)", err.Error())
	}
	if len(w.Events) == 0 {
		w.Events = WebhookEvents
	}
}

// checkURL returns what is wrong with a URL, without the URL itself.
func checkURL(text string, allowHTTP bool) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return errors.New("must be an https URL with a host")
	case u.Scheme == "http" && !allowHTTP:
		return errors.New("must be an https URL: with http everyone on the way can read it, which needs allowHTTP: true")
	}
	return nil
}
