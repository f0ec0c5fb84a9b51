import { render } from 'preact';
import { App } from './app';
import './styles/tokens.css';
import './styles/base.css';
import './styles/shell.css';
import './styles/parts.css';
import './styles/overlay.css';
import './styles/chart.css';
import './styles/views.css';
import './styles/map.css';
import './theme';

const root = document.getElementById('app');
if (root) render(<App />, root);
